#include <base/log.hpp>
#include <train/record.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace trainer::train {

Record::Record(const recipe::Recipe& recipe, metrics::Console& console)
    : recipe_(recipe),
      console_(console),
      loss_{recipe.metrics.smoothing},
      throughput_(std::chrono::steady_clock::now()) {}

void Record::open(const std::filesystem::path& folder, int64_t steps_done) {
  log_.emplace(folder / "log.jsonl", steps_done);
  if (recipe_.metrics.tensorboard) tensorboard_.emplace(folder / "tb", steps_done);
}

void Record::begin() { throughput_ = metrics::Throughput(std::chrono::steady_clock::now()); }

void Record::step(const StepReport& report, const PhaseBytes& phases) {
  loss_.add(report.loss);
  throughput_.step_done(std::chrono::steady_clock::now());
  if (report.step <= std::clamp<int64_t>(recipe_.run.steps / 10, 1, 50)) early_loss_ = {report.step, loss_.value()};
  metrics::StepReport shown{report.step, recipe_.run.steps, report.loss, loss_.value(), report.learning_rate};
  shown.seconds_per_step = throughput_.seconds_per_step();
  shown.seconds_left = throughput_.seconds_left(recipe_.run.steps - report.step);
  shown.memory = metrics::memory_use().resident;
  console_.step(shown);
  if (recipe_.metrics.every > 0 && report.step % recipe_.metrics.every == 0) try_to_write(report, phases, shown.memory);
}

void Record::try_to_write(const StepReport& report, const PhaseBytes& phases, int64_t memory) {
  try {
    write(report, phases, memory);
    warned_ = false;
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::io) throw;
    if (std::exchange(warned_, true)) return;
    console_.clear();
    log_warning("step " + std::to_string(report.step) + " is not in the log, training goes on: " + error.what());
  }
}

void Record::write(const StepReport& report, const PhaseBytes& phases, int64_t memory) {
  if (log_)
    log_->write(report.step, {{"loss", report.loss},
                              {"loss_smoothed", loss_.value()},
                              {"lr", report.learning_rate},
                              {"grad_norm", report.grad_norm},
                              {"seconds", report.seconds},
                              {"memory", memory},
                              {"peak_bytes", phases.peak("train")},
                              {"peak_bytes_cache", phases.peak("cache")},
                              {"peak_bytes_load", phases.peak("load")},
                              {"peak_bytes_sample", phases.peak("sample")},
                              {"peak_bytes_save", phases.peak("save")}});
  if (tensorboard_) {
    const std::array<std::pair<std::string, double>, 4> scalars{{{"loss/train", report.loss},
                                                                 {"loss/smoothed", loss_.value()},
                                                                 {"lr", report.learning_rate},
                                                                 {"grad_norm", report.grad_norm}}};
    tensorboard_->write(report.step, scalars);
  }
}

}  // namespace trainer::train
