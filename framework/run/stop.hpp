/// @file The signal that ends a run. A signal that any rank received ends all of them after the same step.
#pragma once

#include <distributed/group.hpp>

namespace trainer::run {

class Stop {
 public:
  /// `ranks` borrowed.
  explicit Stop(distributed::Group& ranks) : ranks_(ranks) {}

  /// Collective: looks whether a signal came on any rank. Returns asked().
  bool look();
  [[nodiscard]] bool asked() const { return first_.rank >= 0; }
  /// This rank left a validation or pictures unfinished, because a signal came.
  void note_cut_short() { cut_short_ = true; }
  /// Forgets what was left unfinished: later steps have made up for it.
  void forget_cut_short() { cut_short_ = false; }
  /// Collective: whether a signal left work unfinished on any rank. If so, asked() is true afterwards.
  bool look_cut_short();
  /// "signal 15", with several ranks "signal 15, which rank 1 got first,".
  [[nodiscard]] std::string text() const;

 private:
  distributed::Group& ranks_;
  distributed::First first_;
  bool cut_short_ = false;
};

/// Throws Error (preempted) when a signal came: nothing is to be saved while the model is loaded, which takes minutes.
void end_loading_when_stopped();

}  // namespace trainer::run
