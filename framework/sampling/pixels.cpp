#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <sampling/pixels.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::sampling {

std::vector<at::Tensor> to_rgb8(const at::Tensor& images) {
  if (images.dim() != 5 || images.size(1) != 3 || images.size(2) != 1) {
    throw Error(ExitCode::failed, "the autoencoder returned no images [B,3,1,H,W]");
  }
  if (!at::isfinite(images).all().item<bool>()) {
    throw Error(ExitCode::non_finite,
                "a sampled image holds NaN or infinite values; if the loss is finite, decode in "
                "fp32 (autoencoder.dtype)");
  }
  const at::Tensor unit = (images.to(at::kFloat) / 2 + 0.5).clamp(0, 1);
  return (unit * 255).round().to(at::kCPU, at::kByte).select(2, 0).contiguous().unbind(0);
}

}  // namespace trainer::sampling
