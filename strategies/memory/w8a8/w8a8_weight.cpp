/// @file See w8a8_weight.hpp.
#include "w8a8_weight.hpp"

#include <ATen/TensorOperators.h>

#include <utility>

namespace trainer::w8a8 {

W8A8Weight::W8A8Weight(eight_bits::Packed packed, std::shared_ptr<Shared> shared)
    : packed_(std::move(packed)),
      shared_(std::move(shared)),
      code_(packed_.values.scalar_type() == at::kChar ? Code::int8 : Code::e4m3) {
  in_8_bits_ = packed_.scale.size(1) == 1 && packed_.values.scalar_type() != at::kFloat8_e5m2 &&
               fits(packed_.values.size(0), packed_.values.size(1), code_);
}

at::Tensor W8A8Weight::matmul(const at::Tensor& x) const {
  if (!in_8_bits_) return eight_bits::product(x, packed_, /*turned=*/true);
  if (eight_bits::has_kernels(x)) return scaled_product(x, {}, packed_.values.t(), channels(), *shared_);
  const eight_bits::Rows rows = eight_bits::quantize_rows(x, code_);
  const at::Tensor sums = product(rows.values, packed_.values.t(), shared_->fast_accumulation);
  return sums.mul_(rows.scale).mul_(packed_.scale.t()).to(x.scalar_type());
}

at::Tensor W8A8Weight::grad_input(const at::Tensor& g) const {
  if (!in_8_bits_) return eight_bits::product(g, packed_, /*turned=*/false);
  if (eight_bits::has_kernels(g)) return scaled_product(g, channels(), packed_.values, {}, *shared_);
  const eight_bits::Rows rows = eight_bits::quantize_rows(g * packed_.scale.t(), code_);
  const at::Tensor sums = product(rows.values, packed_.values, shared_->fast_accumulation);
  return sums.mul_(rows.scale).to(g.scalar_type());
}

at::Tensor W8A8Weight::channels() const {
  return packed_.scale.expand({packed_.values.size(0), 1}).contiguous().view({-1});
}

at::Tensor W8A8Weight::dense(at::ScalarType dtype) const { return eight_bits::dequantize(packed_, dtype); }

int64_t W8A8Weight::bytes() const { return static_cast<int64_t>(packed_.values.nbytes() + packed_.scale.nbytes()); }

void W8A8Weight::to(at::Device device) {
  packed_.values = packed_.values.to(device);
  packed_.scale = packed_.scale.to(device);
}

}  // namespace trainer::w8a8
