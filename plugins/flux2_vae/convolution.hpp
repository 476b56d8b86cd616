/// @file Convolutions of the autoencoder. Packed ones go to oneDNN whatever the size of the picture, with weights that
/// it laid out once: LibTorch takes another library for small pictures, and lays weights and activations out in each
/// call.
#pragma once

#include "keys.hpp"

namespace trainer::flux2_vae {

/// Whether oneDNN computes convolutions with weights like this one here. Tries it out at the first bf16 of a process.
bool can_pack(const at::Tensor& weight);

/// Of activations [B, C, H, W]. Packed, the results are in the channels-last format, and inputs better are.
struct Convolution {
  /// At stride 1 padded with zeros so that the size stays; at another stride not padded.
  Convolution(TensorSupply& supply, const std::string& name, int64_t in, int64_t out, int64_t kernel,
              int64_t stride = 1);
  /// From now on oneDNN's, where the weights are on the CPU and it can compute with their dtype (`can_pack`); else
  /// nothing changes. The packed weights replace the plain ones, of
  /// (nearly) the same size; LibTorch lets oneDNN take their memory from its CPU allocator, where byte counters see it.
  void pack();
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x) const;
  /// sum + the convolution of x. Uses `sum`, of the result's size, up: the result is written to it where that can be.
  [[nodiscard]] at::Tensor plus(const at::Tensor& x, at::Tensor sum) const;

  at::Tensor weight, bias;  ///< weight: oneDNN's own layout (`packed`), else [out, in, kernel, kernel]
  int64_t stride, padding;
  bool packed = false;
};

}  // namespace trainer::flux2_vae
