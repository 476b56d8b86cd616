#include <assembly/devices.hpp>

#include <algorithm>

namespace trainer::assembly {
namespace {

/// The host has one memory, whatever index it is called by.
bool is_same(at::Device a, at::Device b) { return a == b || (a.is_cpu() && b.is_cpu()); }

std::string key_of_devices(const recipe::Recipe& recipe) {
  return recipe.placement.position.text() + ": placement.devices";
}

/// All that the recipe names.
std::vector<std::string> device_names(const recipe::Recipe& recipe) {
  std::vector<std::string> names = recipe.placement.devices;
  for (const recipe::Component* encoder : {&recipe.text_encoder, &recipe.autoencoder})
    if (!encoder->device.empty()) names.push_back(encoder->device);
  return names;
}

/// Those of the placement. The library of another kind of device is opened first: it knows its names.
std::vector<at::Device> training_devices(const recipe::Recipe& recipe, std::span<const plugin::SearchFolder> folders) {
  open_device_library(device_names(recipe), key_of_devices(recipe), folders, recipe.placement.simulated_bytes());
  return parse_devices(recipe.placement.devices, key_of_devices(recipe));
}

}  // namespace

Devices::Devices(const recipe::Recipe& recipe, std::span<const plugin::SearchFolder> folders,
                 const Libraries& libraries, const distributed::Place& place)
    : open_(true), place_(place), training_(training_devices(recipe, folders)) {
  open_devices(parse_devices(device_names(recipe), key_of_devices(recipe)), libraries);
  training_ = devices_of_process(training_, training_.size(), place);
  note_memories(recipe);
}

Devices::Devices(const recipe::Recipe& recipe, std::span<const plugin::SearchFolder> folders)
    : training_(training_devices(recipe, folders)) {
  note_memories(recipe);
}

Devices::Devices(std::vector<at::Device> training) : open_(true), training_(std::move(training)) {
  for (const at::Device device : training_) note_memory(device);
  note_memory(at::kCPU);
  mark_dry_devices();
}

void Devices::note_memory(at::Device device) {
  if (std::none_of(memories_.begin(), memories_.end(), [&](at::Device other) { return is_same(device, other); }))
    memories_.push_back(device);
}

void Devices::note_memories(const recipe::Recipe& recipe) {
  for (const at::Device device : training_) note_memory(device);
  for (const recipe::Component* encoder : {&recipe.text_encoder, &recipe.autoencoder}) note_memory(of(*encoder));
  note_memory(at::kCPU);
  mark_dry_devices();
}

void Devices::mark_dry_devices() {
  std::vector<bool> cuda;
  for (const at::Device memory : memories_) cuda.push_back(memory.is_cuda());
  dry_devices_ = std::make_shared<DryDevices>(cuda);
}

at::Device Devices::dry(at::Device device) const {
  const auto found =
      std::find_if(memories_.begin(), memories_.end(), [&](at::Device one) { return is_same(one, device); });
  return {at::kMeta, static_cast<at::DeviceIndex>(found - memories_.begin())};
}

at::Device Devices::of(const recipe::Component& encoder) const {
  if (encoder.device.empty()) return training_.front();
  const std::vector<at::Device> named = parse_devices(std::vector<std::string>{encoder.device},
                                                      encoder.position.text() + ": device of \"" + encoder.kind + "\"");
  return open_ ? devices_of_process(named, training_.size(), place_).front() : named.front();
}

}  // namespace trainer::assembly
