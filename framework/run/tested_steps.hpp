/// @file Which steps a checkpoint may be made of: those in which what recomputes leave out was tested again.
#pragma once

#include <distributed/group.hpp>
#include <trainer/sdk/recompute.hpp>

#include <algorithm>
#include <utility>

namespace trainer::run {

class TestedSteps {
 public:
  /// To be called once after every step.
  void end_step() { last_ = std::exchange(next_, false); }
  /// Whether the step that just ended may be saved: it was tested, or no rank leaves anything out. Collective.
  [[nodiscard]] bool may_save(const RecomputeState& state, distributed::Group& ranks) const {
    if (last_) return true;
    const bool leaves_out =
        std::any_of(state.dead.begin(), state.dead.end(), [](const auto& site) { return !site.second.empty(); });
    return ranks.first(leaves_out ? 1 : 0).rank < 0;
  }
  /// In time: the step that a checkpoint is made of is the one that is tested.
  void test_next(RecomputeState& state) {
    if (next_) return;
    state.recheck_elision();
    next_ = true;
  }

 private:
  bool last_ = false;
  bool next_ = true;  ///< the first step of a process finds anew what it leaves out
};

}  // namespace trainer::run
