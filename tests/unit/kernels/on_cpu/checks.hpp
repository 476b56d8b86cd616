/// @file A fused CUDA kernel with its gradients, run on the CPU in every way, against its formula in fp64; beside it
/// the CPU's own kernels, at every instruction set that is here. T: float or Bfloat16.
#pragma once

#include <kernels/cpu.hpp>

#include <cmath>
#include <sstream>

#include "buffers.hpp"

namespace trainer::kernels::test {

template <typename T>
constexpr Dtype kDtype = std::is_same_v<T, float> ? Dtype::f32 : Dtype::bf16;
/// What results may be off, of the largest number among them: sums in fp32, and for bf16 half of its last place.
template <typename T>
constexpr double kLimit = std::is_same_v<T, float> ? 2e-6 : 4e-3;

using Exact = std::vector<double>;

/// `cpu` lets a level of the CPU's kernels fill a buffer.
template <typename T>
void expect_close(const std::string& what, Buffer<T>& got, const Exact& exact, double limit,
                  const std::function<void(const CpuKernels&, void*)>& cpu) {
  double largest = 0;
  for (const double value : exact) largest = std::max(largest, std::abs(value));
  const auto expect = [&](const T* numbers, const char* whose) {
    double apart = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double off = std::abs(to_float(numbers[i]) - exact[i]);
      apart = off <= apart ? apart : off;  // NaN stays
    }
    EXPECT_LE(apart, limit * (largest > 0 ? largest : 1)) << what << ", " << whose << ", largest " << largest;
  };
  expect(got.data(), "CUDA's");
  for (const CpuKernels* level : cpu_levels()) {
    std::vector<T> other(exact.size() + 1);
    std::memset(static_cast<void*>(other.data()), Result::kPattern, other.size() * sizeof(T));
    cpu(*level, other.data());
    expect(other.data(), level->level);
  }
}

/// An operand begins one element behind a multiple of a pack: which one, by its place among them. None.
constexpr int kNone = 0;

struct NormShape {
  int64_t samples, rows, width;
  int64_t step;        ///< of shift and scale
  int64_t offset = 0;  ///< of every operand
  double middle = 0;   ///< x is about it
};
template <typename T>
void check_modulated_norm(const NormShape& shape);
/// The gradients of shift and scale alone: the other kernels, a block a row, take long for many rows.
template <typename T>
void check_modulated_norm_sums(const NormShape& shape);

struct HeadShape {
  int64_t samples, tokens, heads, width;
  int odd = kNone;          ///< x, weight, grad, table, results
  int64_t gap = 0;          ///< elements between tokens
  bool own_tables = false;  ///< a sample each
};
template <typename T>
void check_norm_rope(const HeadShape& shape);

struct GluShape {
  int64_t rows, width, before;
  int64_t gap = 0;  ///< elements between rows
  int odd = kNone;  ///< x, before, grad, results
};
template <typename T>
void check_swiglu(const GluShape& shape);

struct GateShape {
  int64_t samples, rows, width;
  int64_t step;     ///< of the gate
  int odd = kNone;  ///< x, y, gate, grad, results
};
template <typename T>
void check_gated_residual(const GateShape& shape);

}  // namespace trainer::kernels::test
