#include <run/step_meter.hpp>

#include <algorithm>

namespace trainer::run {
namespace {

int64_t gradient_bytes(const std::vector<Parameter*>& trained, at::Device device) {
  int64_t bytes = 0;
  for (const Parameter* parameter : trained)
    if (const at::Tensor& grad = parameter->value().grad(); grad.defined() && grad.device() == device)
      bytes += static_cast<int64_t>(grad.nbytes());
  return bytes;
}

}  // namespace

StepMeter::StepMeter(std::vector<at::Device> devices, const PlacementPlan& plan, const std::vector<Parameter*>& trained)
    : devices_(std::move(devices)), trained_(trained), uses_(devices_.size()) {
  for (const execution::Stage& stage : execution::stages_of(plan))
    stages_.push_back(
        static_cast<std::size_t>(std::find(devices_.begin(), devices_.end(), stage.device) - devices_.begin()));
  begin_step();
}

void StepMeter::begin_step() {
  marks_.clear();
  for (const at::Device device : devices_) marks_.emplace_back(device);
  kept_.assign(devices_.size(), 0);
}

void StepMeter::before(const ScheduleStep& entry) {
  if (entry.pass != Pass::backward) return;
  const std::size_t i = stages_.at(static_cast<std::size_t>(entry.stage));
  if (i < devices_.size()) kept_[i] = std::max(kept_[i], marks_[i].held() - gradient_bytes(trained_, devices_[i]));
}

void StepMeter::end_step() {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    StepUse& use = uses_[i];
    use.step = marks_[i].peak();
    use.kept = kept_[i];
    int64_t& most = first_ ? use.first_step : use.later_steps;
    most = std::max(most, use.step);
  }
  first_ = false;
}

}  // namespace trainer::run
