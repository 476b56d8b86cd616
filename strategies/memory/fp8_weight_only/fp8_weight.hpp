/// @file A frozen weight that is held in fp8 and expanded for every use.
#pragma once

#include <trainer/sdk/eight_bit_weights.hpp>
#include <trainer/sdk/layers.hpp>

namespace trainer::fp8 {

/// Same numbers as a DenseWeight of `dense(x.dtype)`, bit for bit.
class Fp8Weight final : public FrozenWeight {
 public:
  explicit Fp8Weight(eight_bits::Packed packed) : packed_(std::move(packed)) {}
  [[nodiscard]] at::Tensor matmul(const at::Tensor& x) const override;
  [[nodiscard]] at::Tensor grad_input(const at::Tensor& g) const override;
  [[nodiscard]] at::Tensor dense(at::ScalarType dtype) const override;
  /// Of values and scales; a kept expansion is not counted.
  [[nodiscard]] int64_t bytes() const override;
  void to(at::Device device) override;
  [[nodiscard]] std::vector<at::Tensor*> tensors() override { return {&packed_.values, &packed_.scale}; }

  /// From now on the next `matmul` keeps its expanded weight for `grad_input`; `release` ends it and frees the weight.
  void keep() { keeping_ = true; }
  void release() noexcept;
  /// Bytes of a kept expansion.
  [[nodiscard]] int64_t kept_bytes() const;
  [[nodiscard]] const eight_bits::Packed& packed() const { return packed_; }

 private:
  eight_bits::Packed packed_;
  bool keeping_ = false;
  mutable at::Tensor kept_;
};

}  // namespace trainer::fp8
