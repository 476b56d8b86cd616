#include <cache/pixels.hpp>

#include <ATen/ops/empty.h>
#include <trainer/sdk/error.hpp>

#include <array>

namespace trainer::cache {

at::Tensor to_pixels(std::span<const data::Image> images) {
  if (images.empty()) throw Error(ExitCode::failed, "no picture to make a tensor of");
  std::array<float, 256> values;  // as diffusers' image processor: to [0, 1], then to [-1, 1], in fp32
  for (int byte = 0; byte < 256; ++byte) {
    values[static_cast<std::size_t>(byte)] = 2.0F * (static_cast<float>(byte) / 255.0F) - 1.0F;
  }
  const int64_t width = images[0].width, height = images[0].height, plane = width * height;
  at::Tensor pixels = at::empty({static_cast<int64_t>(images.size()), 3, 1, height, width}, at::kFloat);
  float* out = pixels.mutable_data_ptr<float>();
  for (const data::Image& image : images) {
    if (image.width != width || image.height != height)
      throw Error(ExitCode::failed, "pictures of two sizes in one batch");
    for (int64_t channel = 0; channel < 3; ++channel) {
      for (int64_t i = 0; i < plane; ++i) *out++ = values[image.rgb[static_cast<std::size_t>(3 * i + channel)]];
    }
  }
  return pixels;
}

}  // namespace trainer::cache
