/// @file A trial of kernels on each device that is met, once. Private to the SDK.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <mutex>

namespace trainer::fused {

class TrialOnce {
 public:
  explicit TrialOnce(bool (*trial)(at::Device)) : trial_(trial) {}
  /// What the trial said when the device was first asked for.
  bool passed(at::Device device) {
    const std::lock_guard lock(mutex_);
    const auto it = known_.find(device.index());
    if (it != known_.end()) return it->second;
    return known_.emplace(device.index(), trial_(device)).first->second;
  }

 private:
  bool (*trial_)(at::Device);
  std::mutex mutex_;
  std::map<c10::DeviceIndex, bool> known_;
};

}  // namespace trainer::fused
