#include <sim/device.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <vector>

#include <sim/clock.hpp>
#include <sim/memory.hpp>
#include <sim/sim.hpp>

namespace trainer::sim {
namespace {

std::atomic<int> device_count{0};

void check_index(c10::Device d) {
  TORCH_CHECK(d.type() == kSim && d.index() >= -1 && d.index() < device_count, "sim: invalid device ordinal ", d, " (",
              device_count.load(), " devices)");
}

c10::DeviceIndex index_or_current(c10::Device d) { return d.has_index() ? d.index() : current_device(); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kSim; }
  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device before(kSim, current_device());
    setDevice(d);
    return before;
  }
  c10::Device getDevice() const override { return {kSim, current_device()}; }
  void setDevice(c10::Device d) const override {
    check_index(d);
    uncheckedSetDevice(d);
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.has_index()) set_current_device(d.index());
  }
  c10::Stream getStream(c10::Device d) const override { return stream(d, current_stream(index_or_current(d))); }
  c10::Stream getDefaultStream(c10::Device d) const override { return stream(d, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream getNewStream(c10::Device d, int) const override {
    static std::atomic<int64_t> next{1};
    return stream(d, next++);
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    const c10::Stream before = getStream(s.device());
    set_current_stream(s.device_index(), s.id());
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count); }
  // An event is the clock of its stream when it was recorded.
  void record(void** event, const c10::Stream& s, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new double(0);
    *static_cast<double*>(*event) = clock_of(s.device_index(), s.id());
  }
  void block(void* event, const c10::Stream& s) const override {
    if (event != nullptr) wait_until(s.device_index(), s.id(), *static_cast<double*>(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<double*>(event); }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return (*static_cast<double*>(to) - *static_cast<double*>(from)) * 1e3;
  }

 private:
  static c10::Stream stream(c10::Device d, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, index_or_current(d)), id);
  }
};

/// A CPU generator behind a sim device tag.
class SimGenerator final : public c10::GeneratorImpl {
 public:
  explicit SimGenerator(c10::DeviceIndex index)
      : GeneratorImpl(c10::Device(kSim, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { cpu.set_offset(offset); }
  uint64_t get_offset() const override { return cpu.get_offset(); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.unsafeGetGeneratorImpl()->seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  GeneratorImpl* clone_impl() const override {
    auto* copy = new SimGenerator(device().index());
    copy->cpu = cpu.clone();
    return copy;
  }
  at::Generator cpu = at::detail::createCPUGenerator();
};

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto& all = *new std::vector<at::Generator>([] {
    std::vector<at::Generator> list;
    for (int d = 0; d < kMaxDevices; ++d)
      list.push_back(at::make_generator<SimGenerator>(static_cast<c10::DeviceIndex>(d)));
    return list;
  }());
  return all.at(static_cast<std::size_t>(index < 0 ? current_device() : index));
}

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count); }
  void setCurrentDevice(c10::DeviceIndex index) const override { Guard().setDevice({kSim, index}); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return Guard().exchangeDevice({kSim, index}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<SimGenerator>(index < 0 ? current_device() : index);
  }
  c10::Device getDeviceFromPtr(void* data) const override {
    return {kSim, static_cast<c10::DeviceIndex>((static_cast<BlockHeader*>(data) - 1)->device)};
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    at::native::resize_bytes_nocuda(storage, bytes);
  }
};

}  // namespace

void install_devices(int count) {
  device_count = count;
  c10::register_privateuse1_backend("sim");
  [[gnu::used]] static auto* const guard = new c10::impl::DeviceGuardImplRegistrar(kSim, new Guard());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
}

c10::Device resolve(std::optional<c10::Device> device) {
  const c10::Device d = device.value_or(c10::Device(kSim, -1));
  check_index(d);
  return {kSim, index_or_current(d)};
}

at::Generator default_cpu_generator(c10::DeviceIndex index) {
  return static_cast<SimGenerator*>(default_generator(index).unsafeGetGeneratorImpl())->cpu;
}

at::Generator cpu_generator(const at::Generator& generator, c10::Device device) {
  auto* sim = dynamic_cast<SimGenerator*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(sim != nullptr && sim->device() == device, "Expected a '", device, "' generator but found '",
              generator.device(), "'");
  return sim->cpu;
}

int devices() { return device_count; }
c10::Device device(int index) { return {kSim, static_cast<c10::DeviceIndex>(index)}; }

}  // namespace trainer::sim
