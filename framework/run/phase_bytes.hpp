/// @file Bytes of tensors at their highest in each phase of a run, device by device: cache, load, train, sample, save.
#pragma once

#include <planner/byte_counter.hpp>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace trainer::run {

class PhaseBytes {
 public:
  using Peaks = std::vector<int64_t>;  ///< in the order of `devices`

  explicit PhaseBytes(std::vector<at::Device> devices) : devices_(std::move(devices)) {}

  /// What `work` returns. Phases may come again: the highest counts.
  template <typename Work>
  auto during(const std::string& phase, const Work& work) {
    const Entry entry(*this, phase);
    return work();
  }
  void add(const std::string& phase, const Peaks& peaks) {
    Peaks& most = of(phase);
    for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], peaks[i]);
  }
  /// Of one phase on one device; 0 before it came.
  [[nodiscard]] int64_t peak(const std::string& phase, std::size_t device = 0) const {
    for (const auto& [name, most] : peaks_)
      if (name == phase) return most[device];
    return 0;
  }
  /// In the order in which they first came.
  [[nodiscard]] const std::vector<std::pair<std::string, Peaks>>& peaks() const { return peaks_; }
  [[nodiscard]] const std::vector<at::Device>& devices() const { return devices_; }

 private:
  Peaks& of(const std::string& phase) {
    for (auto& [name, most] : peaks_)
      if (name == phase) return most;
    return peaks_.emplace_back(phase, Peaks(devices_.size(), 0)).second;
  }

  /// Also when the work throws.
  class Entry {
   public:
    Entry(PhaseBytes& owner, std::string phase) : owner_(owner), phase_(std::move(phase)) {
      for (const at::Device device : owner_.devices_) marks_.emplace_back(device);
    }
    ~Entry() {
      Peaks peaks;
      for (const planner::PeakMark& mark : marks_) peaks.push_back(mark.peak());
      owner_.add(phase_, peaks);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    PhaseBytes& owner_;
    std::string phase_;
    std::deque<planner::PeakMark> marks_;
  };
  std::vector<at::Device> devices_;
  std::vector<std::pair<std::string, Peaks>> peaks_;
};

}  // namespace trainer::run
