#include "tiling.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <algorithm>

namespace trainer::flux2_vae {
namespace {

/// Fades the start of `tile` along `axis` in place from the end of its neighbour `before`. Later tiles fade from the
/// already faded one, as in diffusers.
void fade(const at::Tensor& before, const at::Tensor& tile, int64_t axis, int64_t extent) {
  extent = std::min({before.size(axis), tile.size(axis), extent});
  if (extent == 0) return;
  std::vector<int64_t> shape(4, 1);
  shape[axis] = extent;
  const at::Tensor ramp = (at::arange(extent, at::kDouble) / static_cast<double>(extent)).view(shape);
  const at::Tensor in = ramp.to(tile.options()), out = (1.0 - ramp).to(tile.options());
  at::Tensor start = tile.narrow(axis, 0, extent);
  start.copy_(before.narrow(axis, before.size(axis) - extent, extent) * out + start * in);
}

at::Tensor clipped(const at::Tensor& x, int64_t axis, int64_t start, int64_t length) {
  return x.narrow(axis, start, std::min(length, x.size(axis) - start));
}

}  // namespace

TileGeometry encode_tiles(int64_t sample, int64_t downscale) {
  const int64_t latent = sample / downscale, blend = latent / 4;
  return {sample, sample * 3 / 4, blend, latent - blend};
}

TileGeometry decode_tiles(int64_t sample, int64_t downscale) {
  const int64_t latent = sample / downscale, blend = sample / 4;
  return {latent, latent * 3 / 4, blend, sample - blend};
}

at::Tensor run_tiled(const at::Tensor& x, const TileGeometry& tiles,
                     const std::function<at::Tensor(const at::Tensor&)>& run) {
  std::vector<at::Tensor> rows, above;
  for (int64_t top = 0; top < x.size(2); top += tiles.stride_in) {
    std::vector<at::Tensor> row, kept;
    for (int64_t left = 0; left < x.size(3); left += tiles.stride_in) {
      const at::Tensor part = clipped(clipped(x, 2, top, tiles.tile_in), 3, left, tiles.tile_in);
      at::Tensor tile = run(part.contiguous()).to(at::kFloat);
      if (!above.empty()) fade(above[row.size()], tile, 2, tiles.blend_out);
      if (!row.empty()) fade(row.back(), tile, 3, tiles.blend_out);
      kept.push_back(clipped(clipped(tile, 2, 0, tiles.keep_out), 3, 0, tiles.keep_out));
      row.push_back(std::move(tile));
    }
    rows.push_back(at::cat(kept, 3));
    above = std::move(row);
  }
  return at::cat(rows, 2);
}

}  // namespace trainer::flux2_vae
