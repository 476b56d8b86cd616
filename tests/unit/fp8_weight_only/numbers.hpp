/// @file Matrices of numbers made from a key, for the fp8 tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <base/rng.hpp>

namespace trainer::fp8::testing {

/// Standard normal [rows, columns] fp32.
inline at::Tensor random_matrix(int64_t rows, int64_t columns, uint64_t key = 1) {
  at::Tensor matrix = at::empty({rows, columns}, at::kFloat);
  KeyedRng rng(5, RngStream::noise, 0, key);
  auto* data = matrix.mutable_data_ptr<float>();
  for (int64_t i = 0; i < matrix.numel(); ++i) data[i] = static_cast<float>(rng.normal());
  return matrix;
}

}  // namespace trainer::fp8::testing
