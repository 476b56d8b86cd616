/// @file See diffusers' get_timestep_embedding and Flux2PosEmbed.
#include "embedding.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace trainer::flux2 {

at::Tensor image_ids(int64_t t, int64_t height, int64_t width, at::Device device) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kLong).device(device);
  at::Tensor ids = at::empty({height, width, 4}, options);
  ids.select(-1, 0).fill_(t);
  ids.select(-1, 1).copy_(at::arange(height, options).unsqueeze(1));
  ids.select(-1, 2).copy_(at::arange(width, options));
  ids.select(-1, 3).zero_();
  return ids.view({height * width, 4});
}

at::Tensor text_ids(int64_t length, at::Device device) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kLong).device(device);
  at::Tensor ids = at::zeros({length, 4}, options);
  ids.select(-1, 3).copy_(at::arange(length, options));
  return ids;
}

at::Tensor sinusoid(const at::Tensor& scaled, int64_t channels) {
  const int64_t half = channels / 2;
  const at::Tensor index = at::arange(half, scaled.options().dtype(at::kFloat));
  const at::Tensor frequencies = at::exp(index * -std::log(10000.0) / half);
  const at::Tensor angles = scaled.to(at::kFloat).unsqueeze(1) * frequencies.unsqueeze(0);
  return at::cat({at::cos(angles), at::sin(angles)}, 1);
}

Rope::Rope(const std::vector<int64_t>& axes, double theta, at::Device device) {
  std::vector<at::Tensor> frequencies, columns;
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    const at::Tensor even = at::arange(0, axes[axis], 2, at::kDouble);
    frequencies.push_back(at::reciprocal(at::pow(theta, even / axes[axis])));
    columns.push_back(at::full({axes[axis] / 2}, static_cast<int64_t>(axis), at::kLong));
  }
  frequencies_ = at::cat(frequencies).to(device);
  columns_ = at::cat(columns).to(device);
}

at::Tensor Rope::table(const at::Tensor& ids) const {
  const at::Tensor positions = ids.to(frequencies_.device()).to(at::kFloat).to(at::kDouble);
  const at::Tensor angles = positions.index_select(-1, columns_) * frequencies_;
  return at::stack({at::cos(angles), at::sin(angles)}, -1).to(at::kFloat);
}

}  // namespace trainer::flux2
