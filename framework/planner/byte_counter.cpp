#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <planner/byte_counter.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

namespace trainer::planner {
namespace {

/// Bytes of one device. Tensors are freed by any thread.
class Tally {
 public:
  void add(int64_t bytes) {
    const int64_t now = current_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  void remove(int64_t bytes) { current_.fetch_sub(bytes, std::memory_order_relaxed); }
  [[nodiscard]] ByteUse use() const { return {current_.load(), peak_.load()}; }
  void set_peak(int64_t peak) { peak_ = peak; }

 private:
  std::atomic<int64_t> current_{0}, peak_{0};
};

Tally host, nowhere;
std::array<Tally, kDryDevices> dry;
thread_local c10::DeviceIndex dry_now = 0;
thread_local bool dry_counted = true;

Tally& dry_tally(c10::DeviceIndex index) {
  TORCH_CHECK(index < kDryDevices, "a dry run has at most ", kDryDevices, " devices");
  return dry[static_cast<std::size_t>(std::max<c10::DeviceIndex>(index, 0))];
}

/// Host memory: the size stands before the data, so that the data pointer itself is what frees it; some of LibTorch's
/// users (oneDNN) need that.
class HostCounter final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return base()->allocate(0);
    auto* const start = static_cast<char*>(base()->raw_allocate(bytes + kHeader));
    *reinterpret_cast<int64_t*>(start) = static_cast<int64_t>(bytes);
    host.add(static_cast<int64_t>(bytes));
    char* const data = start + kHeader;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static constexpr std::size_t kHeader = 64;  // LibTorch's alignment of CPU tensors
  static c10::Allocator* base() { return c10::GetDefaultCPUAllocator(); }
  static void release(void* data) {
    if (data == nullptr) return;
    char* const start = static_cast<char*>(data) - kHeader;
    host.remove(*reinterpret_cast<int64_t*>(start));
    base()->raw_deallocate(start);
  }
};

/// The meta device: no memory, but somebody to tell when a tensor is freed.
class DryCounter final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* const held = new Held{dry_counted ? &dry_tally(dry_now) : &nowhere, static_cast<int64_t>(bytes)};
    held->tally->add(held->bytes);
    return {nullptr, held, &release, c10::Device(c10::kMeta, dry_now)};
  }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  struct Held {
    Tally* tally;
    int64_t bytes;
  };
  static void release(void* context) {
    auto* const held = static_cast<Held*>(context);
    held->tally->remove(held->bytes);
    delete held;
  }
};

/// LibTorch's own guard of the meta device knows of one device.
class DryGuard final : public c10::impl::NoOpDeviceGuardImpl<c10::kMeta> {
 public:
  [[nodiscard]] c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  [[nodiscard]] c10::Device getDevice() const override { return {c10::kMeta, dry_now}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) dry_now = device.index();
  }
  [[nodiscard]] c10::DeviceIndex deviceCount() const noexcept override { return kDryDevices; }
};

using Dtype = std::optional<at::ScalarType>;
using Place = std::optional<at::Device>;

/// LibTorch's, on the device that is asked for.
at::Tensor empty(at::IntArrayRef size, Dtype dtype, std::optional<at::Layout> layout, Place device,
                 std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::Tensor(at::detail::empty_meta(size, dtype, layout, device, pinned, format));
}
at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, Dtype dtype, std::optional<at::Layout> layout,
                         Place device, std::optional<bool> pinned) {
  const c10::OptionalDeviceGuard guard(device);
  return at::Tensor(at::detail::empty_strided_meta(size, stride, dtype, layout, device, pinned));
}

void install_dry_devices() {
  c10::SetAllocator(c10::kMeta, new DryCounter, /*priority=*/1);
  // For the life of the process; used: leak checkers must find what nothing reads.
  [[gnu::used]] static const auto* const displaced = c10::impl::getDeviceGuardImpl(c10::kMeta);
  static_cast<void>(displaced);
  c10::impl::registerDeviceGuard(c10::kMeta, new DryGuard);
  [[gnu::used]] static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  library->impl("empty.memory_format", &empty);
  library->impl("empty_strided", &empty_strided);
}

Tally* tally_of(at::Device device) {
  if (device.is_cpu()) return &host;
  if (device.is_meta()) return &dry_tally(device.index());
  return nullptr;
}

c10::DeviceIndex index_of(at::Device device) { return std::max<c10::DeviceIndex>(device.index(), 0); }

c10::DeviceAllocator* caching_allocator(at::Device device) {
  auto* const found = c10::GetAllocator(device.type());
  auto* const caching = dynamic_cast<c10::DeviceAllocator*>(found);
  return caching != nullptr && caching->initialized() ? caching : nullptr;
}

void set_peak(at::Device device, int64_t peak) {
  if (Tally* tally = tally_of(device))
    tally->set_peak(peak);
  else if (c10::DeviceAllocator* caching = caching_allocator(device))
    caching->resetPeakStats(index_of(device));
}

}  // namespace

void install_byte_counter() {
  // Never destroyed: tensors of static objects outlive everything.
  static const bool installed = [] {
    c10::SetAllocator(c10::kCPU, new HostCounter, /*priority=*/1);
    install_dry_devices();
    return true;
  }();
  static_cast<void>(installed);
}

ByteUse bytes_in_use(at::Device device) {
  if (const Tally* tally = tally_of(device)) return tally->use();
  c10::DeviceAllocator* const caching = caching_allocator(device);
  if (caching == nullptr) return {};
  const auto stats = caching->getDeviceStats(index_of(device));
  const auto& bytes = stats.allocated_bytes.front();  // of all pools
  return {bytes.current, bytes.peak};
}

PeakMark::PeakMark(at::Device device)
    : device_(device), begin_(bytes_in_use(device).current), outer_peak_(bytes_in_use(device).peak) {
  set_peak(device_, begin_);
}

PeakMark::~PeakMark() {
  if (outer_peak_ > peak()) set_peak(device_, outer_peak_);
}

Uncounted::Uncounted() : before_(std::exchange(dry_counted, false)) {}
Uncounted::~Uncounted() { dry_counted = before_; }

}  // namespace trainer::planner
