/// @file The devices that a recipe names, as one process uses them, and the dry devices that stand for them.
#pragma once

#include <assembly/device.hpp>
#include <recipe/recipe.hpp>
#include <trainer/sdk/dry_devices.hpp>

#include <c10/core/Device.h>

#include <memory>
#include <span>
#include <vector>

namespace trainer::assembly {

/// One per process. A second one may live for a while, as to plan a changed recipe; the first then runs nothing on dry
/// devices until the second is gone (DryDevices).
class Devices {
 public:
  /// Opens them. `place` is that of this process among those that train together; it picks the devices of the process.
  /// `folders`: where device libraries are looked for (open_device_library). Throws Error (bad_recipe, unavailable).
  Devices(const recipe::Recipe& recipe, std::span<const plugin::SearchFolder> folders, const Libraries& libraries,
          const distributed::Place& place);
  /// Opens none, for what runs on shapes alone. Throws Error (bad_recipe) for a name that is no device.
  Devices(const recipe::Recipe& recipe, std::span<const plugin::SearchFolder> folders);
  /// These, which are open.
  explicit Devices(std::vector<at::Device> training);

  /// Whether tensors can be made there. Otherwise everything is on dry devices.
  [[nodiscard]] bool are_open() const { return open_; }
  /// Those of the placement.
  [[nodiscard]] const std::vector<at::Device>& training() const { return training_; }
  /// All that hold something of a run: the placement's, those of encoders, and the host. The dry device of the i-th is
  /// "meta:i".
  [[nodiscard]] const std::vector<at::Device>& memories() const { return memories_; }
  /// The dry device that stands for one of them.
  [[nodiscard]] at::Device dry(at::Device device) const;
  /// The device of an encoder: its own, or the first of the placement.
  [[nodiscard]] at::Device of(const recipe::Component& encoder) const;

 private:
  void note_memories(const recipe::Recipe& recipe);
  void note_memory(at::Device device);
  /// To be called when all memories are known.
  void mark_dry_devices();

  bool open_ = false;
  distributed::Place place_;
  std::vector<at::Device> training_, memories_;
  std::shared_ptr<const DryDevices> dry_devices_;  ///< which of the memories are CUDA's
};

}  // namespace trainer::assembly
