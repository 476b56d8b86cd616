#include <run/training.hpp>

namespace trainer::run {
namespace {

optim::AdamWOptions adamw(const recipe::Optimizer& o) { return {o.betas[0], o.betas[1], o.eps, o.weight_decay}; }

}  // namespace

Training::Training(const recipe::Recipe& recipe, assembly::LoadedModel model, std::unique_ptr<Objective> objective,
                   execution::BatchSource& batches, const std::vector<at::Device>& devices, distributed::Group& ranks)
    : recipe_(recipe),
      model_(std::move(model)),
      objective_(std::move(objective)),
      prepared_(batches),
      devices_(devices),
      ranks_(ranks),
      plugins_(recipe.model.kind + "\" with \"" + recipe.objective.kind),
      random_(static_cast<uint64_t>(recipe.run.seed)),
      optimizer_(model_.trained, adamw(recipe.optimizer)) {
  if (recipe.optimizer.fused_backward) fused_.emplace(optimizer_);
  if (recipe.train.ema_decay > 0) ema_.emplace(model_.trained, recipe.train.ema_decay);
}

execution::BatchSource& Training::batches() {
  // Where devices compute, a processor is free for it; where processors do, it would take what the backward needs.
  if (!device().is_cpu() && !ahead_) ahead_.emplace(prepared_, device().is_cuda());
  return ahead_ ? *ahead_ : prepared_;
}

execution::Parts Training::parts() {
  const recipe::Optimizer& o = recipe_.optimizer;
  const optim::LrSchedule schedule{o.schedule, o.lr, o.warmup_steps, recipe_.run.steps, o.min_factor, o.cycles};
  execution::Parts parts{*model_.model, *objective_, model_.memory,           model_.placement, random_,
                         batches(),     optimizer_,  ema_ ? &*ema_ : nullptr, schedule};
  parts.max_grad_norm = recipe_.train.max_grad_norm;
  parts.plugins = plugins_;
  parts.fused = fused_ ? &*fused_ : nullptr;
  parts.ranks = &ranks_;
  parts.overlap = !device().is_cpu();  // for the same reason as batches()
  parts.update_first = !device().is_cpu();
  parts.before_step = [this](const ScheduleStep& entry) {
    if (meter_) meter_->before(entry);
  };
  return parts;
}

execution::Trainer& Training::trainer() {
  if (trainer_) return *trainer_;
  trainer_.emplace(parts(), first_step_);
  if (recipe_.memory.verify == "always") trainer_->recompute_state().always = true;
  trainer_->recompute_state().name_of = [this](const at::Tensor& leaf) {
    for (const Parameter* parameter : model_.trained)
      if (parameter->value().is_same(leaf)) return parameter->name();
    return std::string();
  };
  return *trainer_;
}

void Training::restore(const checkpoint::Loaded& found, int64_t step) {
  checkpoint::Live parts = live();
  checkpoint::restore(found, parts);
  first_step_ = step;
}

checkpoint::Content Training::capture(const checkpoint::Progress& progress) {
  return checkpoint::capture(live(), progress);
}

execution::StepReport Training::step() {
  execution::Trainer& steps = trainer();
  if (meter_)
    meter_->begin_step();
  else
    meter_.emplace(devices_, model_.placement, model_.trained);
  const execution::StepReport report = steps.step();
  meter_->end_step();
  tested_.end_step();
  return report;
}

void Training::test_recompute() { tested_.test_next(trainer().recompute_state()); }

bool Training::may_be_saved() { return tested_.may_save(trainer().recompute_state(), ranks_); }

}  // namespace trainer::run
