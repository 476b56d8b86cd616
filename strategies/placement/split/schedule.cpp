#include "schedule.hpp"

#include <algorithm>

namespace trainer::split {
namespace {

/// The order of one stage's work.
std::vector<ScheduleStep> order_of(int64_t stage, int64_t stages, int64_t micro_batches) {
  std::vector<ScheduleStep> order;
  const int64_t ahead = std::min(stages - stage - 1, micro_batches);
  for (int64_t m = 0; m < ahead; ++m) order.push_back({Pass::forward, stage, m});
  for (int64_t m = 0; m < micro_batches; ++m) {
    if (m + ahead < micro_batches) order.push_back({Pass::forward, stage, m + ahead});
    order.push_back({Pass::backward, stage, m});
  }
  return order;
}

/// Which stages and micro-batches are through.
class Done {
 public:
  Done(int64_t stages, int64_t micro_batches)
      : stages_(stages), micro_batches_(micro_batches), done_(static_cast<std::size_t>(2 * stages * micro_batches)) {}
  [[nodiscard]] bool may_run(const ScheduleStep& step) const {
    if (step.pass == Pass::forward)
      return step.stage == 0 || done_[index({Pass::forward, step.stage - 1, step.micro_batch})];
    return step.stage + 1 == stages_ || done_[index({Pass::backward, step.stage + 1, step.micro_batch})];
  }
  void add(const ScheduleStep& step) { done_[index(step)] = true; }

 private:
  [[nodiscard]] std::size_t index(const ScheduleStep& step) const {
    const int64_t pass = step.pass == Pass::forward ? 0 : 1;
    return static_cast<std::size_t>((pass * stages_ + step.stage) * micro_batches_ + step.micro_batch);
  }
  int64_t stages_, micro_batches_;
  std::vector<bool> done_;
};

}  // namespace

std::vector<ScheduleStep> serial(int64_t stages, int64_t micro_batches) {
  std::vector<ScheduleStep> steps;
  for (int64_t m = 0; m < micro_batches; ++m) {
    for (int64_t s = 0; s < stages; ++s) steps.push_back({Pass::forward, s, m});
    for (int64_t s = stages; s-- > 0;) steps.push_back({Pass::backward, s, m});
  }
  return steps;
}

std::vector<ScheduleStep> one_forward_one_backward(int64_t stages, int64_t micro_batches) {
  std::vector<std::vector<ScheduleStep>> orders;
  for (int64_t s = 0; s < stages; ++s) orders.push_back(order_of(s, stages, micro_batches));
  std::vector<std::size_t> next(orders.size(), 0);
  Done done(stages, micro_batches);
  std::vector<ScheduleStep> steps;
  const auto total = static_cast<std::size_t>(2 * stages * micro_batches);
  // One host thread issues for all: in turn, every stage whose next task has what it needs.
  while (steps.size() < total)
    for (std::size_t s = 0; s < orders.size(); ++s) {
      if (next[s] == orders[s].size() || !done.may_run(orders[s][next[s]])) continue;
      steps.push_back(orders[s][next[s]++]);
      done.add(steps.back());
    }
  return steps;
}

}  // namespace trainer::split
