#include <ATen/core/Tensor.h>
#include <base/units.hpp>
#include <execution/keyed_random.hpp>
#include <execution/trainer.hpp>
#include <planner/byte_counter.hpp>
#include <planner/uncounted_copy.hpp>
#include <prove/trajectory.hpp>

namespace trainer::prove {
namespace {

/// Dies once before the loss of a micro-batch: its blocks have run, its backward has not.
class FailingObjective final : public Objective {
 public:
  explicit FailingObjective(const Objective& inner) : inner_(inner) {}
  std::vector<std::string> provides() const override { return inner_.provides(); }
  Example prepare(const Batch& batch, const Model& model, const Random& random) const override {
    return inner_.prepare(batch, model, random);
  }
  at::Tensor loss(const Example& example, const Prediction& predict) const override {
    if (left_ == 0) {
      left_ = -1;
      throw Interruption("no loss");
    }
    if (left_ > 0) --left_;
    return inner_.loss(example, predict);
  }
  /// The loss after `count` more of them is an Interruption.
  void fail_after(int64_t count) { left_ = count; }
  [[nodiscard]] bool waits() const { return left_ >= 0; }

 private:
  const Objective& inner_;
  mutable int64_t left_ = -1;
};

/// Copies every gradient that reaches a parameter, as long as it lives.
class Recorder {
 public:
  Recorder(const std::vector<Parameter*>& parameters, Trajectory& into) : parameters_(parameters) {
    for (Parameter* parameter : parameters_)
      hooks_.push_back(parameter->value().register_hook([&into, parameter](const at::Tensor& grad) {
        into.gradients[parameter->name()].push_back(planner::uncounted_copy(grad));
      }));
  }
  ~Recorder() {
    for (std::size_t i = 0; i < hooks_.size(); ++i) parameters_[i]->value().remove_hook(hooks_[i]);
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

 private:
  const std::vector<Parameter*>& parameters_;
  std::vector<unsigned> hooks_;
};

/// Runs one step; where it was told to die, the step again.
double step_loss(execution::Trainer& trainer, const Bench& bench, FailingObjective& objective, const Failure& failure,
                 Trajectory& trajectory) {
  if (failure.place == Failure::nowhere) return trainer.step().loss;
  if (failure.place == Failure::before_forward)
    bench.data.fail_at_micro = failure.micro_batch;
  else
    objective.fail_after(failure.micro_batch);
  const auto before = trajectory.gradients;
  const auto pending = [&] { return bench.data.fail_at_micro >= 0 || objective.waits(); };
  try {
    const double loss = trainer.step().loss;
    if (pending()) throw std::logic_error("the step was to die and did not");
    return loss;
  } catch (const std::exception&) {
    if (pending()) throw;
    trajectory.gradients = before;
    return trainer.step().loss;
  }
}

}  // namespace

std::size_t Trajectory::gradient_count() const {
  std::size_t count = 0;
  for (const auto& [name, list] : gradients) count += list.size();
  return count;
}

std::string Trajectory::heavy_operations() const {
  std::string text = format_flops(flops);
  int64_t again = 0, all = 0;
  for (const auto& [type, report] : recompute) again += report.recomputed_calls, all += report.forward_calls;
  if (all > 0) text += ", " + std::to_string(again) + " of " + std::to_string(all) + " run again";
  return text;
}

Trajectory train_steps(const Bench& bench, int64_t steps, const Failure& failure) {
  Trajectory trajectory;
  const planner::PeakMark peak(bench.placement.prologue);
  const FlopCounter counter;
  const Recorder recorder(bench.trained, trajectory);
  const execution::KeyedRandom random(bench.seed);
  FailingObjective objective(bench.objective);
  optim::AdamW optimizer(bench.trained, {});
  optim::LrSchedule schedule;
  schedule.lr = 1e-2;
  schedule.total_steps = steps;
  std::optional<optim::FusedBackward> fused;
  if (bench.fused_backward) fused.emplace(optimizer);
  execution::Parts parts{bench.model, objective, bench.memory, bench.placement, random,
                         bench.data,  optimizer, nullptr,      schedule,        bench.max_grad_norm};
  parts.fused = fused ? &*fused : nullptr;
  execution::Trainer trainer(parts, 0);
  for (int64_t step = 0; step < steps; ++step)
    trajectory.losses.push_back(step_loss(trainer, bench, objective, failure, trajectory));
  trajectory.peak_bytes = peak.above();
  trajectory.flops = counter.flops();
  for (Parameter* parameter : bench.trained)
    trajectory.weights[parameter->name()] = planner::uncounted_copy(parameter->value());
  trajectory.recompute = trainer.recompute_state().reports;
  trajectory.recomputed = !trainer.recompute_state().input_bytes.empty();
  return trajectory;
}

Trajectory train_loaded(assembly::LoadedModel& loaded, const Objective& objective, const planner::PeakMark& held,
                        const Exercise& exercise, const Failure& failure) {
  RandomBatches data(shapes_of(*loaded.model, objective, exercise.sizes), exercise.samples, exercise.micro_batches,
                     exercise.data, exercise.seed);
  const int64_t weights = held.held();
  Trajectory trajectory = train_steps({*loaded.model, loaded.trained, objective, loaded.memory, loaded.placement, data,
                                       exercise.seed, exercise.max_grad_norm, exercise.fused_backward},
                                      kSteps, failure);
  trajectory.peak_bytes += weights;
  return trajectory;
}

}  // namespace trainer::prove
