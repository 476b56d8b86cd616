/// @file Matrices as they are stored, and products of them as a thread computes one. Included by the tests of products.
#pragma once

#include <kernels/cpu.hpp>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "bf16.hpp"

namespace trainer::kernels {
namespace {

/// Numbers [rows, columns] as they are stored, by rows or by columns, and what they are.
class Numbers {
 public:
  Numbers(int64_t rows, int64_t columns, Dtype dtype, bool turned, unsigned seed)
      : rows_(rows), columns_(columns), dtype_(dtype), turned_(turned), wide_(rows * columns) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (double& x : wide_) {
      x = static_cast<float>(normal(random));
      if (dtype == Dtype::bf16) x = widened(rounded(static_cast<float>(x)));
      f32_.push_back(static_cast<float>(x));
      bf16_.push_back(rounded(f32_.back()));
    }
  }
  [[nodiscard]] Matrix matrix() const {
    const void* const data = dtype_ == Dtype::f64   ? static_cast<const void*>(wide_.data())
                             : dtype_ == Dtype::f32 ? static_cast<const void*>(f32_.data())
                                                    : bf16_.data();
    return {data, dtype_, turned_ ? 1 : columns_, turned_ ? rows_ : 1, 0};
  }
  [[nodiscard]] double at(int64_t row, int64_t column) const {
    return wide_.at(static_cast<std::size_t>(turned_ ? column * rows_ + row : row * columns_ + column));
  }

 private:
  int64_t rows_, columns_;
  Dtype dtype_;
  bool turned_;
  std::vector<double> wide_;
  std::vector<float> f32_;
  std::vector<uint16_t> bf16_;
};

using Bytes = std::vector<unsigned char>;
int64_t size_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }
double number(const Bytes& bytes, Dtype dtype, int64_t i) {
  const unsigned char* const at = bytes.data() + i * size_of(dtype);
  double wide = 0;
  float narrow = 0;
  uint16_t half = 0;
  if (dtype == Dtype::f64) return std::memcpy(&wide, at, 8), wide;
  if (dtype == Dtype::f32) return std::memcpy(&narrow, at, 4), narrow;
  return std::memcpy(&half, at, 2), widened(half);
}

/// c of that product, computed in units one after the other.
Bytes computed(const CpuKernels& cpu, Product p, int64_t threads = 1) {
  Bytes c(static_cast<std::size_t>(p.batches * p.m * p.n * size_of(p.type)), 0xff);
  p.c = c.data();
  p.c_step = p.n;
  p.c_batch_step = p.m * p.n;
  cut(p, threads);
  std::vector<unsigned char> memory(static_cast<std::size_t>(product_bytes(p)) + 64, 0xff);
  auto* const buffer = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  for (int64_t unit = product_units(p); unit-- > 0;) cpu.product(p, buffer, unit, unit + 1);
  return c;
}

struct Case {
  int64_t m, n, k;
};
const std::vector<Case> kCases{{1, 1, 1},     {1, 33, 257},   {7, 16, 16},   {13, 95, 31},
                               {85, 70, 300}, {16, 200, 513}, {100, 16, 70}, {5, 5, 0},
                               {600, 40, 20}, {30, 1100, 16}, {14, 32, 256}, {29, 7, 800}};

}  // namespace
}  // namespace trainer::kernels
