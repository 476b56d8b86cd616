#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <execution/forward.hpp>
#include <execution/mark.hpp>
#include <execution/trainer.hpp>
#include <plugin/guard.hpp>
#include <trainer/sdk/error.hpp>

#include <chrono>
#include <cmath>
#include <utility>

namespace trainer::execution {
namespace {

std::string join(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

std::string join_times(const Example& example) {
  std::vector<std::string> times;
  for (const double time : example.times) times.push_back(std::to_string(time));
  return join(times);
}

/// The first parameter in the order of backward (from the end of the model) whose gradient is not finite.
std::string first_bad_gradient(const std::vector<Parameter*>& parameters) {
  for (auto it = parameters.rbegin(); it != parameters.rend(); ++it) {
    const at::Tensor& grad = (*it)->value().grad();
    if (grad.defined() && !at::isfinite(grad).all().item<bool>()) return (*it)->name();
  }
  return {};
}

}  // namespace

Trainer::Trainer(Parts parts, int64_t first_step)
    : parts_(std::move(parts)),
      stages_(parts_.model, parts_.objective, parts_.memory, parts_.placement, parts_.plugins),
      step_(first_step) {
#if defined(TRAINER_VERIFY_ALWAYS)
  recompute_state_.always = true;  // a debug build looks for its own mistakes, too
#endif
  if (!parts_.overlap || parts_.ranks->size() == 1) return;
  std::vector<at::Tensor> parameters;
  for (const Parameter* parameter : parts_.optimizer.parameters()) parameters.push_back(parameter->value());
  overlap_.emplace(*parts_.ranks, std::move(parameters));
}

Example Trainer::example(int64_t step, int64_t micro) const {
  const Mark mark(kMarkData);
  const Batch batch = parts_.data.batch(step, micro);
  return plugin::guard(parts_.plugins, "prepare",
                       [&] { return parts_.objective.prepare(batch, parts_.model, parts_.random); });
}

Example Trainer::take_example(int64_t micro) {
  std::optional<NextExample> ahead = micro == 0 ? std::exchange(next_, std::nullopt) : std::nullopt;
  if (!ahead || ahead->step != step_) return example(step_, micro);
  if (ahead->error) std::rethrow_exception(ahead->error);
  return std::move(ahead->example);
}

void Trainer::make_next_example() {
  next_ = NextExample{step_ + 1, {}, {}};
  try {
    next_->example = example(step_ + 1, 0);
  } catch (...) {
    next_->error = std::current_exception();  // there may be no such step
  }
}

std::vector<at::Tensor> Trainer::accumulate_gradients() {
  StageInputs inputs{
      [this](int64_t micro) { return take_example(micro); }, {}, parts_.before_step, parts_.before_blocks};
  if (parts_.fused != nullptr) inputs.before_backward = [this](const at::Tensor& loss) { parts_.fused->watch(loss); };
  return stages_.run(parts_.data.micro_batches(), inputs, recompute_state_);
}

distributed::First Trainer::average_gradients() {
  if (parts_.ranks->size() == 1) return {};
  const Mark mark(kMarkRanks);
  if (overlap_) return overlap_->finish();
  std::vector<at::Tensor> gradients;
  for (const Parameter* parameter : parts_.optimizer.parameters()) {
    at::Tensor& gradient = parameter->value().mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameter->value());  // on another rank there may be one
    gradients.push_back(gradient);
  }
  return parts_.ranks->average(gradients);
}

std::string Trainer::exchange_text() const {
  if (!overlap_) return {};
  return "gradients go to the other ranks in " + std::to_string(overlap_->pieces()) + " piece(s), " +
         std::to_string(overlap_->complete_early()) + " of them complete before the backward ends";
}

StepReport Trainer::step() {
  const Mark mark(kMarkStep);
  const auto begin = std::chrono::steady_clock::now();
  StepReport report;
  report.learning_rate = parts_.schedule.at(step_);

  parts_.optimizer.zero_grad();  // a step that threw may have left the gradients of its first micro-batches
  if (parts_.fused != nullptr) parts_.fused->begin(report.learning_rate);
  if (overlap_) overlap_->begin();
  const std::vector<at::Tensor> own = accumulate_gradients();
  const distributed::First bad_gradient = average_gradients();
  const at::Tensor losses = parts_.ranks->joined(at::stack(own));
  const at::Tensor norm =
      parts_.fused != nullptr ? parts_.fused->finish() : optim::gradient_norm(parts_.optimizer.parameters());
  const at::Tensor loss = losses.mean();
  if (updates_first()) {
    const at::Tensor here = norm.to(loss.device());
    const at::Tensor good = at::isfinite(loss).logical_and(at::isfinite(here));
    // A norm that is none would make all gradients none, and hide which one was first.
    update(report.learning_rate, at::where(good, here, at::ones_like(here)), 1 - good.to(at::kFloat));
    make_next_example();
  }
  read_numbers(report, loss, norm);
  if (!std::isfinite(report.loss) || !std::isfinite(report.grad_norm)) report_non_finite(own, losses, bad_gradient);

  if (!updates_first()) update(report.learning_rate, norm, {});
  finish_step();
  report.step = ++step_;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

void Trainer::read_numbers(StepReport& report, const at::Tensor& loss, const at::Tensor& norm) const {
  const at::Tensor numbers = at::stack({loss.to(at::kDouble), norm.to(loss.device(), at::kDouble)}).cpu();  // waits
  report.loss = numbers[0].item<double>();
  report.grad_norm = numbers[1].item<double>();
}

void Trainer::finish_step() {
  const Mark mark(kMarkOptimizer);
  if (parts_.fused == nullptr) parts_.optimizer.zero_grad();
  if (parts_.ema != nullptr) parts_.ema->update();
  if (!std::exchange(first_step_done_, true)) parts_.memory.after_first_step();
}

void Trainer::update(double learning_rate, const at::Tensor& norm, const at::Tensor& veto) {
  if (parts_.fused != nullptr) return;
  const Mark mark(kMarkOptimizer);
  if (parts_.max_grad_norm > 0) optim::clip_gradients(parts_.optimizer.parameters(), norm, parts_.max_grad_norm);
  parts_.optimizer.step(learning_rate, veto);
}

void Trainer::dry_step(const std::function<void()>& before_update) {
  parts_.optimizer.zero_grad();
  const double learning_rate = parts_.schedule.at(step_);
  if (parts_.fused != nullptr) parts_.fused->begin(learning_rate);
  const std::vector<at::Tensor> losses = accumulate_gradients();
  before_update();
  update(learning_rate,
         parts_.fused != nullptr ? parts_.fused->finish() : optim::gradient_norm(parts_.optimizer.parameters()), {});
  finish_step();
  ++step_;
}

void Trainer::fit(int64_t steps, const std::function<bool(const StepReport&)>& after_step) {
  while (step_ < steps)
    if (!after_step(step())) return;
}

std::string Trainer::weights_after() const {
  if (parts_.fused == nullptr || !parts_.fused->mixed())
    return ". The weights were not changed by this step, and checkpoints are from before it.";
  return ". With optimizer.fused_backward some weights were updated before this was seen; those in memory are lost, "
         "and checkpoints are from before the step.";
}

void Trainer::report_non_finite(const std::vector<at::Tensor>& own, const at::Tensor& all,
                                distributed::First gradient) {
  const auto each = static_cast<int64_t>(own.size());
  const std::string step = "step " + std::to_string(step_ + 1) + ": ";
  const std::string elsewhere = "; its own message names files and timesteps" + weights_after();
  for (int64_t i = 0; i < all.numel(); ++i) {
    const int64_t rank = i / each;
    if (std::isfinite(all[i].item<double>())) continue;
    if (rank == parts_.ranks->rank()) report_loss(own);
    throw Error(ExitCode::non_finite, step + "the loss of rank " + std::to_string(rank) + " became " +
                                          std::to_string(all[i].item<double>()) + elsewhere);
  }
  if (gradient.rank < 0 || gradient.rank == parts_.ranks->rank()) report_gradient(own.size());
  throw Error(ExitCode::non_finite,
              step + "the gradient of rank " + std::to_string(gradient.rank) + " became non-finite" + elsewhere);
}

void Trainer::report_loss(const std::vector<at::Tensor>& losses) {
  std::size_t micro = 0;
  while (std::isfinite(losses[micro].item<double>())) ++micro;
  const Example bad = example(step_, static_cast<int64_t>(micro));
  const std::string where = first_non_finite(parts_.model, bad, parts_.memory, parts_.placement);
  throw Error(ExitCode::non_finite, "step " + std::to_string(step_ + 1) + ": the loss became " +
                                        std::to_string(losses[micro].item<double>()) +
                                        "; first non-finite value: " + (where.empty() ? "the loss itself" : where) +
                                        "; files: " + join(parts_.data.files(step_, static_cast<int64_t>(micro))) +
                                        "; timesteps: " + join_times(bad) + weights_after() +
                                        " A lower optimizer.lr usually helps.");
}

void Trainer::report_gradient(std::size_t micro_batches) {
  std::vector<std::string> files, times;
  for (std::size_t micro = 0; micro < micro_batches; ++micro) {
    times.push_back(join_times(example(step_, static_cast<int64_t>(micro))));
    const std::vector<std::string> more = parts_.data.files(step_, static_cast<int64_t>(micro));
    files.insert(files.end(), more.begin(), more.end());
  }
  const std::string where =
      parts_.fused != nullptr ? parts_.fused->first_bad() : first_bad_gradient(parts_.optimizer.parameters());
  throw Error(ExitCode::non_finite, "step " + std::to_string(step_ + 1) + ": the gradient became non-finite; " +
                                        (where.empty() ? "every element is finite, but the norm is too large for fp32"
                                                       : "first in \"" + where + "\"") +
                                        "; files: " + join(files) + "; timesteps: " + join(times) + weights_after());
}

}  // namespace trainer::execution
