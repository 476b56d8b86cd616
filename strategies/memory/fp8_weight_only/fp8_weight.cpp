/// @file See fp8_weight.hpp.
#include "fp8_weight.hpp"

#include <ATen/ops/mm.h>

namespace trainer::fp8 {

at::Tensor Fp8Weight::matmul(const at::Tensor& x) const {
  if (!keeping_) return eight_bits::product(x, packed_, /*turned=*/true);
  kept_ = dense(x.scalar_type());
  return at::mm(x, kept_.t());
}

at::Tensor Fp8Weight::grad_input(const at::Tensor& g) const {
  const bool kept = kept_.defined() && kept_.scalar_type() == g.scalar_type();
  return kept ? at::mm(g, kept_) : eight_bits::product(g, packed_, /*turned=*/false);
}

at::Tensor Fp8Weight::dense(at::ScalarType dtype) const { return eight_bits::dequantize(packed_, dtype); }

int64_t Fp8Weight::bytes() const { return static_cast<int64_t>(packed_.values.nbytes() + packed_.scale.nbytes()); }

int64_t Fp8Weight::kept_bytes() const { return kept_.defined() ? static_cast<int64_t>(kept_.nbytes()) : 0; }

void Fp8Weight::to(at::Device device) {
  packed_.values = packed_.values.to(device);
  packed_.scale = packed_.scale.to(device);
  kept_.reset();
}

void Fp8Weight::release() noexcept {
  keeping_ = false;
  kept_.reset();
}

}  // namespace trainer::fp8
