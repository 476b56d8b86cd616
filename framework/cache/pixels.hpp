/// @file Decoded pictures as the tensor that autoencoders take.
#pragma once

#include <ATen/core/Tensor.h>
#include <data/image.hpp>

#include <span>

namespace trainer::cache {

/// [B, 3, 1, H, W] fp32 on the CPU, value 2 * (byte / 255) - 1. At least one picture, all of one size.
at::Tensor to_pixels(std::span<const data::Image> images);

}  // namespace trainer::cache
