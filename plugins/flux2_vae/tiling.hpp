/// @file Overlapping tiles with linear cross-fades, as diffusers' AutoencoderKLFlux2 does: bounds memory for large
/// images.
#pragma once

#include <trainer/sdk/tensor.hpp>

#include <functional>

namespace trainer::flux2_vae {

/// Sides in cells of the input (in) or the output (out) of the tiled function.
struct TileGeometry {
  int64_t tile_in = 0;    ///< side of a tile
  int64_t stride_in = 0;  ///< distance of two tiles
  int64_t blend_out = 0;  ///< width of the cross-fade with the tiles above and on the left
  int64_t keep_out = 0;   ///< side of what is kept of a tile
};

/// Tiles of pixels `sample` wide (multiple of the downscale) and of latents `sample / downscale`, overlap a quarter.
TileGeometry encode_tiles(int64_t sample, int64_t downscale);
TileGeometry decode_tiles(int64_t sample, int64_t downscale);

/// `run` on every tile of x [B, C, H, W], put together in fp32. The last tiles of a row or column may be smaller.
at::Tensor run_tiled(const at::Tensor& x, const TileGeometry& tiles,
                     const std::function<at::Tensor(const at::Tensor&)>& run);

}  // namespace trainer::flux2_vae
