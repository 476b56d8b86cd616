#include <base/log.hpp>
#include <base/units.hpp>
#include <run/record.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <utility>

namespace trainer::run {

metrics::LogGroups bytes_by_device(const PhaseBytes& phases, const std::vector<StepUse>& steps) {
  metrics::LogGroups groups;
  for (std::size_t i = 0; i < phases.devices().size(); ++i) {
    const StepUse use = i < steps.size() ? steps[i] : StepUse{};
    auto& [device, numbers] = groups.emplace_back(
        phases.devices()[i].str(),
        std::vector<std::pair<std::string, int64_t>>{
            {"step", use.step}, {"kept", use.kept}, {"first_step", use.first_step}, {"later_steps", use.later_steps}});
    for (const char* phase : {"cache", "load", "validate", "sample", "save"})
      numbers.emplace_back(phase, phases.peak(phase, i));
  }
  return groups;
}

std::string in_words(const std::vector<std::pair<std::string, int64_t>>& numbers) {
  static const std::map<std::string, std::string> names{
      {"kept", "activations kept"}, {"first_step", "first step"}, {"later_steps", "later steps"}};
  std::string text;
  for (const auto& [name, number] : numbers) {
    if (number == 0 || name == "step") continue;  // a phase that did not come; the last step is no summary
    const auto words = names.find(name);
    text += (text.empty() ? "tensors: " : ", ") + (words == names.end() ? name : words->second) + " " +
            format_bytes(static_cast<double>(number));
  }
  return text.empty() ? "no tensors" : text;
}

Record::Record(const recipe::Recipe& recipe, RunFolder& folder, const std::vector<at::Device>& devices, Show show,
               distributed::Group& ranks)
    : recipe_(recipe),
      folder_(folder),
      ranks_(ranks),
      console_(std::move(show.console)),
      json_(show.json),
      phases_(devices),
      profiler_(ranks.writer() ? show.profile : 0, folder.path() / "profile", devices,
                [&folder] { folder.require_mine(); }),
      loss_{recipe.metrics.smoothing},
      throughput_(std::chrono::steady_clock::now()) {}

void Record::open(int64_t steps_done) {
  if (!ranks_.writer()) return;
  log_.emplace(folder_.path() / "log.jsonl",
               steps_done > 0 ? steps_done : -1);  // what was before a run that is new is none of it
  validations_ = read_validations(folder_.path() / "log.jsonl");
  if (recipe_.metrics.tensorboard) tensorboard_.emplace(folder_.path() / "tb", steps_done);
}

void Record::begin() { throughput_ = metrics::Throughput(std::chrono::steady_clock::now()); }

metrics::LogGroups Record::bytes(const Training& training) const { return bytes_by_device(phases_, training.bytes()); }

void Record::step(const execution::StepReport& report, Training& training) {
  loss_.add(report.loss);
  throughput_.step_done(std::chrono::steady_clock::now());
  if (report.step <= std::clamp<int64_t>(recipe_.run.steps / 10, 1, 50)) early_loss_ = {report.step, loss_.value()};
  metrics::StepReport shown{report.step, recipe_.run.steps, report.loss, loss_.value(), report.learning_rate};
  shown.seconds_per_step = throughput_.seconds_per_step();
  shown.seconds_left = throughput_.seconds_left(recipe_.run.steps - report.step);
  shown.memory = metrics::memory_use().resident;
  console_.step(shown);
  if (recipe_.metrics.every > 0 && report.step % recipe_.metrics.every == 0)
    try_to_write(report.step, [&] { write(report, bytes(training), shown.memory); });
  if (report.step == training.first_step() + 1) log_recompute(training);
  // The first step learns in which order the gradients come.
  if (const std::string exchange = training.exchange_text();
      report.step == training.first_step() + 2 && !exchange.empty())
    info(exchange);
  if (const std::string profile = profiler_.after_step(); !profile.empty()) info(profile);
  const bool last = report.step >= recipe_.run.steps;
  ranks_.progress("training, step " + std::to_string(report.step + (last ? 0 : 1)));
}

void Record::end() {
  console_.clear();
  if (const std::string profile = profiler_.end(); !profile.empty()) info(profile);
}

void Record::log_recompute(Training& training) {
  for (const auto& [type, r] : training.recompute().reports) {
    char text[256];
    std::snprintf(text, sizeof text,
                  "%lld of %lld heavy operations run again, %lld kept (%s a block), elided "
                  "%.0f %% of the forward FLOPs",
                  static_cast<long long>(r.recomputed_calls), static_cast<long long>(r.forward_calls),
                  static_cast<long long>(r.kept_calls), format_bytes(static_cast<double>(r.kept_bytes)).c_str(),
                  r.forward_flops > 0 ? 100.0 * r.elided_flops / r.forward_flops : 0.0);
    info("recompute of \"" + type + "\" blocks: " + text);
  }
}

void Record::despite_full_disk(int64_t step, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::io) throw;
    warn("step " + std::to_string(step) + " is not completely saved, training goes on: " + error.what());
  }
}

void Record::validation(int64_t step, const ValidationLoss& result) {
  validations_.push_back({step, result.loss});
  try_to_write(step, [&] { write(step, result); });
}

void Record::try_to_write(int64_t step, const std::function<void()>& write) {
  try {
    write();
    warned_ = false;
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::io) throw;
    if (std::exchange(warned_, true)) return;
    console_.clear();
    log_warning("step " + std::to_string(step) + " is not in the log, training goes on: " + error.what());
  }
}

void Record::write(const execution::StepReport& report, const metrics::LogGroups& bytes, int64_t memory) {
  if (log_)
    log_->write(report.step, {{"loss", report.loss},
                              {"loss_smoothed", loss_.value()},
                              {"lr", report.learning_rate},
                              {"grad_norm", report.grad_norm},
                              {"seconds", report.seconds},
                              {"memory", memory},
                              {"bytes", bytes}});
  if (tensorboard_) {
    const std::array<std::pair<std::string, double>, 4> scalars{{{"loss/train", report.loss},
                                                                 {"loss/smoothed", loss_.value()},
                                                                 {"lr", report.learning_rate},
                                                                 {"grad_norm", report.grad_norm}}};
    tensorboard_->write(report.step, scalars);
  }
}

void Record::write(int64_t step, const ValidationLoss& result) {
  if (log_) {
    std::vector<metrics::LogField> fields{{"validation_loss", result.loss}, {"validation_losses", result.losses}};
    if (!result.times.empty()) fields.emplace_back("validation_times", result.times);
    log_->write(step, fields);
  }
  if (!tensorboard_) return;
  std::vector<std::pair<std::string, double>> scalars{{"loss/validation", result.loss}};
  const std::string of = " of " + std::to_string(result.losses.size());
  for (std::size_t i = 0; i < result.losses.size(); ++i)
    scalars.emplace_back("validation/timestep " + std::to_string(i + 1) + of, result.losses[i]);
  tensorboard_->write(step, scalars);
}

}  // namespace trainer::run
