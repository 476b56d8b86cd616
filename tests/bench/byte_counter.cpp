/// @file A CPU allocator for LibTorch that counts bytes, as a library of its own: both sides of tools/bench load
/// it, so that peaks of ours and of Python are measured in the same way. Loading it puts it in place.
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace {

std::mutex mutex;
std::unordered_map<void*, int64_t>& sizes() {
  static auto* const map = new std::unordered_map<void*, int64_t>;  // blocks are freed until the process ends
  return *map;
}
int64_t live = 0, peak = 0;

void release(void* block) {
  {
    const std::lock_guard lock(mutex);
    // Blocks from before the counter was there are not in the map.
    if (const auto it = sizes().find(block); it != sizes().end()) {
      live -= it->second;
      sizes().erase(it);
    }
  }
  c10::free_cpu(block);
}

class Counting final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* block = c10::alloc_cpu(bytes);
    if (block != nullptr) {
      const std::lock_guard lock(mutex);
      sizes()[block] = static_cast<int64_t>(bytes);
      live += static_cast<int64_t>(bytes);
      peak = std::max(peak, live);
    }
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
};

[[maybe_unused]] const bool installed = [] {
  c10::SetCPUAllocator(new Counting, /*priority=*/255);
  return true;
}();

}  // namespace

/// Bytes of all tensors at this moment.
extern "C" __attribute__((visibility("default"))) int64_t bench_live_bytes() {
  const std::lock_guard lock(mutex);
  return live;
}
/// The most since the last call; then starts anew from what is live.
extern "C" __attribute__((visibility("default"))) int64_t bench_take_peak_bytes() {
  const std::lock_guard lock(mutex);
  const int64_t most = peak;
  peak = live;
  return most;
}
