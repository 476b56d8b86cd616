#include <checkpoint/signals.hpp>
#include <run/stop.hpp>

namespace trainer::run {

bool Stop::look() {
  first_ = ranks_.first(checkpoint::stop_signal());
  return asked();
}

bool Stop::look_cut_short() {
  first_ = ranks_.first(cut_short_ ? checkpoint::stop_signal() : 0);
  return asked();
}

std::string Stop::text() const {
  return "signal " + std::to_string(first_.value) +
         (ranks_.size() > 1 ? ", which rank " + std::to_string(first_.rank) + " got first," : "");
}

void end_loading_when_stopped() {
  if (const int number = checkpoint::stop_signal(); number != 0)
    throw Error(ExitCode::preempted, "stopped by signal " + std::to_string(number) +
                                         " while the model was loaded; run the same command again");
}

}  // namespace trainer::run
