/// @file What a run shows and writes down of its steps: the console, log.jsonl and TensorBoard. Only the rank that
/// writes opens the files.
#pragma once

#include <metrics/console.hpp>
#include <metrics/log_file.hpp>
#include <metrics/meter.hpp>
#include <metrics/tensorboard.hpp>
#include <recipe/recipe.hpp>
#include <run/phase_bytes.hpp>
#include <run/step_meter.hpp>
#include <execution/trainer.hpp>
#include <run/history.hpp>
#include <run/validation.hpp>

#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

namespace trainer::run {

/// Bytes of tensors by device: of steps ("step", "kept", "first_step", "later_steps") and of the other phases so far.
metrics::LogGroups bytes_by_device(const PhaseBytes& phases, const std::vector<StepUse>& steps);

/// One device of these in words: "tensors: activations kept 1.2 MB, first step 9 MB, later steps 8.1 MB, load 6 MB".
std::string in_words(const std::vector<std::pair<std::string, int64_t>>& numbers);

class Record {
 public:
  /// Both borrowed.
  Record(const recipe::Recipe& recipe, metrics::Console& console);

  /// Opens the files in the run's folder, without what they hold of steps after `steps_done`.
  void open(const std::filesystem::path& folder, int64_t steps_done);
  /// Training begins now.
  void begin();
  void step(const execution::StepReport& report, const PhaseBytes& phases, const StepMeter& steps);

  /// A row of its own, "validation_loss", and curves beside that of the training loss.
  void validation(int64_t step, const ValidationLoss& result);
  /// Of the run, those before a resume included; of the writer.
  [[nodiscard]] const std::vector<ValidationPoint>& validations() const { return validations_; }

  [[nodiscard]] const metrics::SmoothedMean& loss() const { return loss_; }
  void set_loss(const metrics::SmoothedMean& loss) { loss_ = loss; }
  /// The smoothed loss early in this process's steps, and the step it is of; step 0 before one.
  struct EarlyLoss {
    int64_t step = 0;
    double value = 0;
  };
  [[nodiscard]] EarlyLoss early_loss() const { return early_loss_; }
  [[nodiscard]] bool on_tensorboard() const { return tensorboard_.has_value(); }

 private:
  /// A disk that takes no row costs that row, not the run.
  void try_to_write(int64_t step, const std::function<void()>& write);
  void write(const execution::StepReport& report, const metrics::LogGroups& bytes, int64_t memory);
  void write(int64_t step, const ValidationLoss& result);

  const recipe::Recipe& recipe_;
  metrics::Console& console_;
  metrics::SmoothedMean loss_;
  metrics::Throughput throughput_;
  std::optional<metrics::LogFile> log_;
  std::optional<metrics::TensorBoardFile> tensorboard_;
  EarlyLoss early_loss_;
  std::vector<ValidationPoint> validations_;
  bool warned_ = false;  ///< of rows that are not written now
};

}  // namespace trainer::run
