/// @file Bytes of tensors at their highest in each phase of a run: cache, load, train, sample, save.
#pragma once

#include <planner/byte_counter.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace trainer::train {

class PhaseBytes {
 public:
  /// What `work` returns. Phases may come again: the highest counts.
  template <typename Work>
  auto during(const std::string& phase, at::Device device, const Work& work) {
    const Entry entry(*this, phase, device);
    return work();
  }
  void add(const std::string& phase, int64_t peak) {
    for (auto& [name, most] : peaks_)
      if (name == phase) {
        most = std::max(most, peak);
        return;
      }
    peaks_.emplace_back(phase, peak);
  }
  /// Of one phase; 0 before it came.
  [[nodiscard]] int64_t peak(const std::string& phase) const {
    for (const auto& [name, most] : peaks_)
      if (name == phase) return most;
    return 0;
  }
  /// In the order in which they first came.
  [[nodiscard]] const std::vector<std::pair<std::string, int64_t>>& peaks() const { return peaks_; }

 private:
  /// Also when the work throws.
  class Entry {
   public:
    Entry(PhaseBytes& owner, std::string phase, at::Device device)
        : owner_(owner), phase_(std::move(phase)), mark_(device) {}
    ~Entry() { owner_.add(phase_, mark_.peak()); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    PhaseBytes& owner_;
    std::string phase_;
    planner::PeakMark mark_;
  };
  std::vector<std::pair<std::string, int64_t>> peaks_;
};

}  // namespace trainer::train
