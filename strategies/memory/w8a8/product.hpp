/// @file Matrix products of 8-bit numbers: rows of activations or gradients packed when they are multiplied.
#pragma once

#include <trainer/sdk/eight_bit_weights.hpp>

#include <map>
#include <mutex>

namespace trainer::w8a8 {

using eight_bits::Code;

/// Whether a weight [out, in] can take part in `product` in both directions: the libraries want multiples of 8 (int8)
/// or 16 (fp8).
bool fits(int64_t out, int64_t in, Code code);

/// a [M, K] b [K, N] -> [M, N] fp32, as if summed exactly: int8 in int32, fp8 in fp32. `b` may be any view of a dense
/// matrix. Few rows are filled up with zeros (CUDA's int8 product wants more than 16). On the meta device: the shape.
/// With `fast_accumulation` tensor cores of CUDA may keep sums of fp8 to about 14 bits.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, bool fast_accumulation = false);

/// What the products of all weights of a strategy share.
class Shared {
 public:
  explicit Shared(bool fast = false) : fast_accumulation(fast) {}
  /// As many fp32 ones; filled once for a device.
  at::Tensor ones(int64_t count, at::Device device);

  const bool fast_accumulation;

 private:
  std::mutex mutex_;
  std::map<c10::DeviceIndex, at::Tensor> ones_;
};

/// The same with its scales in few passes, for devices with kernels (SDK, ops/eight_bits.hpp): rows of x [M, K] times
/// `factors` [K] in 8 bits, times b [K, N], times `channels` [N], rounded once to x's dtype. Factors and channels are
/// fp32, undefined for 1; b holds the code. bf16 and e4m3 in one call of `_scaled_mm` with scales of rows and columns,
/// where the device is known to do that right; otherwise fp32 or int32 sums pass through memory once. Where the bits of
/// `product` are exact, so are these.
at::Tensor scaled_product(const at::Tensor& x, const at::Tensor& factors, const at::Tensor& b,
                          const at::Tensor& channels, Shared& shared);

}  // namespace trainer::w8a8
