#include <sim/memory.hpp>

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include <sim/clock.hpp>
#include <sim/sim.hpp>

namespace trainer::sim {
namespace {

struct Pool {
  std::atomic<int64_t> current{0}, peak{0}, allocations{0}, total{0}, capacity{0};
};
std::array<Pool, kMaxDevices + 1> pools;  // the host's first
Pool& pool(int device) { return pools.at(static_cast<std::size_t>(device + 1)); }

std::atomic<bool> poison{false}, temporaries{false};
thread_local c10::DeviceIndex current = 0;
thread_local int payer_of_host = -1;

void charge(std::size_t bytes, int device) {
  Pool& p = pool(device);
  const auto n = static_cast<int64_t>(bytes);
  const int64_t now = p.current.fetch_add(n) + n, capacity = p.capacity;
  if (capacity > 0 && now > capacity) {
    p.current -= n;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "sim out of memory. Tried to allocate ", n, " bytes. sim:", device,
                     " has a total capacity of ", capacity, " bytes of which ", capacity - (now - n),
                     " bytes is free.");
  }
  for (int64_t peak = p.peak; now > peak && !p.peak.compare_exchange_weak(peak, now);) {
  }
  ++p.allocations;
  p.total += n;
}

c10::DataPtr allocate_block(std::size_t bytes, c10::Device where, int payer) {
  if (bytes == 0) return {nullptr, nullptr, &release, where};
  charge(bytes, payer);
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* header = static_cast<BlockHeader*>(std::aligned_alloc(kAlignment, sizeof(BlockHeader) + rounded));
  if (header == nullptr) {
    pool(payer).current -= static_cast<int64_t>(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "host out of memory: ", bytes, " bytes");
  }
  *header = BlockHeader{bytes, payer, 0, false, 0, payer >= 0 ? current_stream(payer) : 0, {}};
  void* data = header + 1;
  if (payer >= 0 && poison) std::memset(data, 0xFF, bytes);
  return {data, data, &release, where};
}

class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override { return allocate_block(bytes, c10::kCPU, payer_of_host); }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

/// Addresses of page-locked blocks: any other pointer may be asked about too.
struct PinnedBlocks {
  std::mutex mutex;
  std::set<const void*> addresses;
};
PinnedBlocks& pinned_blocks() {
  static auto& instance = *new PinnedBlocks;
  return instance;
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr block = allocate_block(bytes, c10::kCPU, -1);
    if (BlockHeader* header = header_of(block); header != nullptr) {
      header->pinned = true;
      const std::lock_guard lock(pinned_blocks().mutex);
      pinned_blocks().addresses.insert(block.get());
    }
    return block;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

/// Also answers at::accelerator::getDeviceStats and the like.
class SimAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override { return allocate_block(bytes, {kSim, current}, current); }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (BlockHeader* header = header_of(data)) record_use(*header, stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats result;
    const Stats now = stats(index);
    for (auto* list :
         {&result.allocated_bytes, &result.reserved_bytes, &result.active_bytes, &result.requested_bytes}) {
      (*list)[0].current = now.current;
      (*list)[0].peak = now.peak;
      (*list)[0].allocated = now.total;
    }
    return result;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { pool(index).total = 0; }
  void resetPeakStats(c10::DeviceIndex index) override { reset_peak(index); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex index) override {
    constexpr int64_t kUnlimited = int64_t{1} << 40;
    const int64_t limit = pool(index).capacity;
    const int64_t capacity = limit > 0 ? limit : kUnlimited;
    return {static_cast<std::size_t>(capacity - pool(index).current), static_cast<std::size_t>(capacity)};
  }
};

}  // namespace

// Never destroyed: tensors may outlive the statics of this library.
c10::Allocator& host_allocator() {
  static auto& allocator = *new HostAllocator;
  return allocator;
}
c10::Allocator& pinned_allocator() {
  static auto& allocator = *new PinnedAllocator;
  return allocator;
}
bool is_pinned(const void* data) {
  const std::lock_guard lock(pinned_blocks().mutex);
  return pinned_blocks().addresses.contains(data);
}
c10::Allocator& device_allocator() {
  static auto& allocator = *new SimAllocator;
  return allocator;
}

void install_allocators() {
  c10::SetAllocator(c10::kCPU, &host_allocator(), /*priority=*/1);
  c10::SetAllocator(kSim, &device_allocator(), /*priority=*/1);
}

BlockHeader* header_of(const c10::DataPtr& data) {
  if (data.get() == nullptr || data.get_deleter() != &release) return nullptr;
  return static_cast<BlockHeader*>(data.get()) - 1;
}

void release(void* data) {
  if (data == nullptr) return;
  BlockHeader* header = static_cast<BlockHeader*>(data) - 1;
  if (header->pinned) {
    const std::lock_guard lock(pinned_blocks().mutex);
    pinned_blocks().addresses.erase(data);
  }
  if (header->device >= 0 && timeline_on()) check_uses(*header);
  pool(header->device).current -= static_cast<int64_t>(header->bytes);
  if (header->device >= 0 && poison) std::memset(data, 0xFF, header->bytes);
  std::free(header);
}

void move_charge(BlockHeader& header, int device) {
  if (header.device == device) return;
  charge(header.bytes, device);
  pool(header.device).current -= static_cast<int64_t>(header.bytes);
  header.device = device;
  header.stream = device >= 0 ? current_stream(device) : 0;
}

c10::DeviceIndex current_device() { return current; }
void set_current_device(c10::DeviceIndex index) { current = index; }

ChargeTemporaries::ChargeTemporaries(int device) : before_(payer_of_host) { payer_of_host = temporaries ? device : -1; }
ChargeTemporaries::~ChargeTemporaries() { payer_of_host = before_; }

Stats stats(int device) {
  const Pool& p = pool(device);
  return {p.current, p.peak, p.allocations, p.total};
}
void reset_peak(int device) { pool(device).peak = pool(device).current.load(); }
void set_capacity(int device, int64_t bytes) { pool(device).capacity = bytes; }
void set_poison(bool on) { poison = on; }
void set_count_temporaries(bool on) { temporaries = on; }

}  // namespace trainer::sim
