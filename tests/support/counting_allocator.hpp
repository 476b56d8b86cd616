/// @file Bytes that LibTorch holds on the CPU, counted exactly.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>

namespace trainer::test {

/// Counts what LibTorch holds on the CPU while it is the allocator: from its construction on, one at a time. Memory
/// that was there before is not counted, nor is its release.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : base_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, /*priority=*/1); }
  ~CountingAllocator() override { c10::SetCPUAllocator(base_, /*priority=*/1); }
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr data = base_->allocate(bytes);
    void* const pointer = data.get();
    auto* const context = new Context{std::move(data), bytes, &live_, &peak_};
    live_ += static_cast<int64_t>(bytes);
    peak_ = std::max(peak_, live_);
    return {pointer, context, &release, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  [[nodiscard]] int64_t live() const { return live_; }
  [[nodiscard]] int64_t peak() const { return peak_; }
  void reset_peak() { peak_ = live_; }

 private:
  struct Context {
    c10::DataPtr data;
    std::size_t bytes;
    int64_t *live, *peak;
  };
  static void release(void* context) {
    auto* const mine = static_cast<Context*>(context);
    *mine->live -= static_cast<int64_t>(mine->bytes);
    delete mine;
  }
  c10::Allocator* base_;
  int64_t live_ = 0, peak_ = 0;
};

}  // namespace trainer::test
