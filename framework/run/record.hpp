/// @file What a run shows and writes down of its steps: the console, log.jsonl, TensorBoard and the profile. Only the
/// writer (rank 0) opens files.
#pragma once

#include <base/log.hpp>
#include <metrics/console.hpp>
#include <metrics/log_file.hpp>
#include <metrics/meter.hpp>
#include <metrics/tensorboard.hpp>
#include <recipe/recipe.hpp>
#include <run/history.hpp>
#include <run/phase_bytes.hpp>
#include <run/profiler.hpp>
#include <run/run_folder.hpp>
#include <run/training.hpp>
#include <run/validation_loss.hpp>

#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

namespace trainer::run {

/// Bytes of tensors by device: of steps ("step", "kept", "first_step", "later_steps") and of the other phases so far.
metrics::LogGroups bytes_by_device(const PhaseBytes& phases, const std::vector<StepUse>& steps);

/// One device of these in words: "tensors: activations kept 1.2 MB, first step 9 MB, later steps 8.1 MB, load 6 MB".
std::string in_words(const std::vector<std::pair<std::string, int64_t>>& numbers);

/// What `trainer run` was asked to show.
struct Show {
  metrics::ConsoleOptions console;
  bool json = false;    ///< results as JSON
  int64_t profile = 0;  ///< steps to profile
};

class Record {
 public:
  /// All but `show` borrowed. `devices`: those of the model.
  Record(const recipe::Recipe& recipe, RunFolder& folder, const std::vector<at::Device>& devices, Show show,
         distributed::Group& ranks);

  /// The writer opens log.jsonl and TensorBoard's file, and drops their rows of steps after `steps_done`.
  void open(int64_t steps_done);
  /// Training begins now.
  void begin();
  /// Shows and logs a step. Call it after every step. The first steps also report recompute and gradient exchange.
  void step(const execution::StepReport& report, Training& training);
  /// No more steps come.
  void end();
  /// Logs the validation loss as a row of its own, and as curves beside that of the training loss.
  void validation(int64_t step, const ValidationLoss& result);

  /// Runs `work` and returns its result. Tensors that it makes count as bytes of the phase.
  template <typename Work>
  auto during(const std::string& phase, const Work& work) {
    return phases_.during(phase, work);
  }
  /// Runs `work`, which saves something of a step. On a full disk it warns, and training continues: the next save may
  /// have room, and earlier saves stay.
  void despite_full_disk(int64_t step, const std::function<void()>& work);
  void info(const std::string& text) { console_.clear(), log_info(text); }
  void warn(const std::string& text) { console_.clear(), log_warning(text); }
  metrics::Console& console() { return console_; }

  /// The validation losses of the whole run, also from before a resume. Empty on ranks that do not write.
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
  [[nodiscard]] bool json() const { return json_; }
  [[nodiscard]] metrics::LogGroups bytes(const Training& training) const;

 private:
  /// A full disk costs a row, not the run.
  void try_to_write(int64_t step, const std::function<void()>& write);
  void write(const execution::StepReport& report, const metrics::LogGroups& bytes, int64_t memory);
  void write(int64_t step, const ValidationLoss& result);

  void log_recompute(Training& training);

  const recipe::Recipe& recipe_;
  RunFolder& folder_;
  distributed::Group& ranks_;
  metrics::Console console_;
  bool json_;
  PhaseBytes phases_;
  Profiler profiler_;
  metrics::SmoothedMean loss_;
  metrics::Throughput throughput_;
  std::optional<metrics::LogFile> log_;
  std::optional<metrics::TensorBoardFile> tensorboard_;
  EarlyLoss early_loss_;
  std::vector<ValidationPoint> validations_;
  bool warned_ = false;  ///< that rows are not written at present
};

}  // namespace trainer::run
