#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <train/keyed_random.hpp>
#include <train/prove/trajectory.hpp>
#include <train/trainer.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <sstream>

namespace trainer::prove {
namespace {

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

std::vector<int64_t> index_of(int64_t flat, at::IntArrayRef sizes) {
  std::vector<int64_t> index(sizes.size());
  for (std::size_t d = sizes.size(); d-- > 0; flat /= sizes[d]) index[d] = flat % sizes[d];
  return index;
}

/// `got` and `expected` have the same shape and differ in some bit.
Difference element_difference(std::string what, const at::Tensor& got, const at::Tensor& expected) {
  Difference difference{std::move(what)};
  if (got.sizes() != expected.sizes() || got.scalar_type() != expected.scalar_type()) {
    std::ostringstream text;
    text << difference.what << " is " << got.scalar_type() << got.sizes() << " instead of " << expected.scalar_type()
         << expected.sizes();
    difference.what = text.str();
    return difference;
  }
  const at::Tensor a = got.contiguous().view(-1), b = expected.contiguous().view(-1);
  const auto size = static_cast<std::size_t>(a.element_size());
  const auto* const x = static_cast<const char*>(a.data_ptr());
  const auto* const y = static_cast<const char*>(b.data_ptr());
  int64_t first = 0;
  while (std::memcmp(x + static_cast<std::size_t>(first) * size, y + static_cast<std::size_t>(first) * size, size) == 0)
    ++first;
  difference.element = index_of(first, got.sizes());
  difference.got = a[first].item<double>();
  difference.expected = b[first].item<double>();
  const at::Tensor wide = b.to(at::kDouble);
  const double scale = wide.abs().max().item<double>();
  const double apart = (a.to(at::kDouble) - wide).abs().max().item<double>();
  difference.largest = scale > 0 ? apart / scale : apart;
  return difference;
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.detach().to(tensor.options().device(at::kCPU), /*non_blocking=*/false, /*copy=*/true);
}

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
      hooks_.push_back(parameter->value().register_hook(
          [&into, parameter](const at::Tensor& grad) { into.gradients[parameter->name()].push_back(on_cpu(grad)); }));
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
double step_loss(train::Trainer& trainer, const Bench& bench, FailingObjective& objective, const Failure& failure,
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

std::string Difference::text() const {
  if (element.empty() && expected == 0 && got == 0) return what;
  std::ostringstream where;
  where << what;
  if (!element.empty()) where << " at " << at::IntArrayRef(element);
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, ": %.9g instead of %.9g", got, expected);
  where << numbers;
  if (tensors > 0) {
    std::snprintf(numbers, sizeof numbers, "; largest difference in it %.1e of its maximum; %zu tensor%s differ%s",
                  largest, tensors, tensors == 1 ? "" : "s", tensors == 1 ? "s" : "");
    where << numbers;
  }
  return where.str();
}

std::optional<Difference> first_difference(const Trajectory& run, const Trajectory& expected) {
  std::optional<Difference> first;
  const auto note = [&](Difference difference) {
    if (!first) first = std::move(difference);
  };
  if (run.losses.size() != expected.losses.size()) return Difference{"number of steps"};
  for (std::size_t step = 0; step < run.losses.size(); ++step)
    if (std::memcmp(&run.losses[step], &expected.losses[step], sizeof(double)) != 0)
      note({"loss of step " + std::to_string(step + 1), {}, run.losses[step], expected.losses[step]});
  if (run.gradients.size() != expected.gradients.size() || run.weights.size() != expected.weights.size())
    return first ? first : Difference{"number of trained tensors with a gradient"};
  std::size_t tensors = 0, longest = 0;
  for (const auto& [name, list] : run.gradients) {
    const auto other = expected.gradients.find(name);
    if (other == expected.gradients.end() || other->second.size() != list.size())
      return first ? first : Difference{"number of gradients of " + name};
    longest = std::max(longest, list.size());
  }
  for (std::size_t i = 0; i < longest; ++i)
    for (const auto& [name, list] : run.gradients) {
      if (i >= list.size() || same_bits(list[i], expected.gradients.at(name)[i])) continue;
      ++tensors;
      if (!first)
        note(element_difference("gradient " + std::to_string(i) + " of " + name, list[i],
                                expected.gradients.at(name)[i]));
    }
  for (const auto& [name, weight] : run.weights) {
    const auto other = expected.weights.find(name);
    if (other == expected.weights.end()) return first ? first : Difference{"no trained tensor " + name};
    if (same_bits(weight, other->second)) continue;
    ++tensors;
    if (!first) note(element_difference("weight " + name, weight, other->second));
  }
  if (first) first->tensors = tensors;
  return first;
}

Trajectory train_steps(const Bench& bench, int64_t steps, const Failure& failure) {
  Trajectory trajectory;
  const Recorder recorder(bench.trained, trajectory);
  const train::KeyedRandom random(bench.seed);
  FailingObjective objective(bench.objective);
  optim::AdamW optimizer(bench.trained, {});
  optim::LrSchedule schedule;
  schedule.lr = 1e-2;
  schedule.total_steps = steps;
  std::optional<optim::FusedBackward> fused;
  if (bench.fused_backward) fused.emplace(optimizer);
  train::Parts parts{bench.model, objective, bench.memory, bench.placement, random,
                     bench.data,  optimizer, nullptr,      schedule,        bench.max_grad_norm};
  parts.fused = fused ? &*fused : nullptr;
  train::Trainer trainer(parts, 0);
  for (int64_t step = 0; step < steps; ++step)
    trajectory.losses.push_back(step_loss(trainer, bench, objective, failure, trajectory));
  for (Parameter* parameter : bench.trained) trajectory.weights[parameter->name()] = on_cpu(parameter->value());
  trajectory.recompute = trainer.recompute_state().reports;
  return trajectory;
}

}  // namespace trainer::prove
