/// @file Group normalisation, with or without SiLU behind it. Channels-last maps on the CPU, which the encoder's
/// oneDNN convolutions leave, take a kernel of two passes of our own: LibTorch sums such a map in one part per thread,
/// so that its bits, and with them a cached latent, would depend on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trainer::flux2_vae {

enum class Then { nothing, silu };

/// x [B, C, H, W] in fp32 or bf16, weight and bias [C] -> x's shape, dtype and memory format. Each of `groups` runs of
/// channels gets mean 0 and variance 1 (biased, plus eps) in each sample. On the CPU the bits of a sample depend on
/// itself alone: neither on the number of threads nor on the rest of the batch. Computes in fp32, adds parts up in
/// fp64. Channels-last CPU maps give no gradients; every other x goes to LibTorch's operators.
at::Tensor group_norm(const at::Tensor& x, int64_t groups, const at::Tensor& weight, const at::Tensor& bias, double eps,
                      Then then);

}  // namespace trainer::flux2_vae
