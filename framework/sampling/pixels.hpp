/// @file Decoded images as 8-bit RGB.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trainer::sampling {

/// Images [B, 3, 1, H, W] in about [-1, 1] -> one uint8 [3, H, W] on the CPU each: clamped, 255 * (x / 2 + 1 / 2)
/// rounded. Throws Error (non_finite) when a value is NaN or infinite.
std::vector<at::Tensor> to_rgb8(const at::Tensor& images);

}  // namespace trainer::sampling
