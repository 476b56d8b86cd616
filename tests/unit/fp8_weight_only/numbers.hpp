/// @file Matrices of numbers made from a key, and the bytes that LibTorch holds on the CPU, for the fp8 tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <base/rng.hpp>
#include <memory>

namespace trainer::fp8::testing {

/// Standard normal [rows, columns] fp32.
inline at::Tensor random_matrix(int64_t rows, int64_t columns, uint64_t key = 1) {
  at::Tensor matrix = at::empty({rows, columns}, at::kFloat);
  KeyedRng(5, RngStream::noise, 0, key)
      .fill_normal({matrix.mutable_data_ptr<float>(), static_cast<std::size_t>(matrix.numel())});
  return matrix;
}

/// Counts the CPU bytes of tensors that this thread makes while it lives. Tensors made before are not counted, and
/// must not die meanwhile.
class CountedBytes {
 public:
  [[nodiscard]] int64_t live() const { return counter_->live; }
  [[nodiscard]] int64_t peak() const { return counter_->peak; }
  void restart_peak() { counter_->peak = counter_->live; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      live += bytes;
      peak = std::max(peak, live);
    }
    void reportOutOfMemory(int64_t, size_t, size_t, c10::Device) override {}
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
    int64_t live = 0, peak = 0;
  };
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

}  // namespace trainer::fp8::testing
