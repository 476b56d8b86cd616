/// @file One training run: its folder, its live parts, and what happens at steps besides training. Of several ranks
/// each has a Run and all do the same; files are written and the user is spoken to by one, the writer.
#pragma once

#include <base/log.hpp>
#include <checkpoint/attempts.hpp>
#include <checkpoint/places.hpp>
#include <checkpoint/run_lock.hpp>
#include <distributed/group.hpp>
#include <preparation/ahead_batches.hpp>
#include <checkpoint/train_state.hpp>
#include <assembly/assemble.hpp>
#include <preparation/cache_phase.hpp>
#include <execution/keyed_random.hpp>
#include <run/phase_bytes.hpp>
#include <run/profiler.hpp>
#include <run/record.hpp>
#include <run/run_options.hpp>
#include <sampling/samples.hpp>
#include <run/tested_steps.hpp>
#include <execution/trainer.hpp>

#include <functional>
#include <memory>
#include <optional>

namespace trainer::run {

class Run {
 public:
  /// Takes the run folder's lock; nothing is loaded yet. Collective, as all that follows.
  Run(assembly::Assembly& assembly, const RunOptions& request, distributed::Group& ranks = distributed::Group::alone());

  /// Cache phase, model, optimiser, resume. After it the run stands at `steps_done()`.
  void prepare();
  /// Trains to the recipe's last step, with samples and checkpoints on the way. Returns false when a signal stopped it;
  /// the state is then saved.
  bool train();
  /// Samples after training, the final checkpoint and the export; prints where everything is. Returns false when a
  /// signal cut validation or samples short: the same command makes what is missing.
  bool finish();

 private:
  /// Throws Error (bad_recipe) when another recipe made what is in the folder, (not_found) when its newest checkpoint
  /// is not found and --resume says neither "never" nor another one.
  void require_recipe_of_folder() const;
  /// All ranks see one run folder and agree on what is run (cache_phase.hpp). Throws Error naming the rank that does
  /// not.
  void agree();
  /// With placement.budgets: refuses what `trainer plan` refuses, before anything is encoded. Collective.
  void require_budgets();
  /// With memory.budget: plans, or takes the plan that the run to go on from was trained with.
  void plan_memory();
  [[nodiscard]] std::string plan_text();
  [[nodiscard]] std::string format_of_checkpoint();  ///< to go on from; empty without one
  void announce() const;
  /// Warns of plugins that nothing proved, and writes into run.json which plugins did not come with the program.
  void note_attestation() const;
  /// The checkpoint to go on from.
  std::optional<checkpoint::Loaded> find_checkpoint();
  /// Throws Error when this run may not go on from it.
  void require_same(const checkpoint::Loaded& found) const;
  void resume();
  /// Those that the trainer gets.
  execution::BatchSource& batches();
  void begin_record();
  /// What made the state; compared on resume.
  [[nodiscard]] std::map<std::string, std::string> fingerprints() const;
  bool after_step(const execution::StepReport& report);
  /// What the recipe wants after this step; may set `stop_`.
  void between_steps(int64_t step);
  void log_recompute();
  /// Whether the recipe wants the validation loss after this step; the same on all ranks.
  [[nodiscard]] bool is_validated(int64_t step) const;
  /// Measures it, unless the log has it already. Collective.
  void validate();
  void draw_samples(const std::string& title);
  /// Shows what the profiler has to say, if anything.
  void tell(const std::string& profile);
  void warn(const std::string& text) { console_.clear(), log_warning(text); }
  enum class Save { on_the_way, at_the_end };
  /// A save at the end waits for room on a full disk; one on the way fails, and training goes on. Of the writer alone.
  void save_checkpoint(Save when);
  [[nodiscard]] bool is_saved(int64_t step) const;
  [[nodiscard]] bool is_sampled(int64_t step) const;
  /// Before the last step a disk that does not take it is told, and the run goes on.
  void save_on_the_way(const std::function<void()>& save);
  void export_weights();
  /// Before the first step: what a run that was stopped or killed at this step did not get to. Results and pictures
  /// only of a run that goes on in its folder by itself, not with --resume FOLDER.
  void make_up();
  /// After the last step, of the writer.
  void leave_results();
  /// What is trained when its checkpoint has no room: a result is several times smaller. In words; empty without room.
  std::string export_at_least();
  std::filesystem::path export_file() const;
  std::filesystem::path grid_file() const;
  /// What the user is told at the end.
  void print_results() const;
  [[nodiscard]] checkpoint::Live live();
  /// The state now, as it is saved.
  [[nodiscard]] checkpoint::Content state();
  [[nodiscard]] int64_t steps_done() const;
  [[nodiscard]] at::Device device() const;  ///< of the model

  assembly::Assembly& assembly_;
  const RunOptions& request_;
  distributed::Group& ranks_;
  const recipe::Recipe& recipe_;
  std::filesystem::path folder_;
  std::optional<checkpoint::RunLock> lock_;  ///< of the writer
  std::string run_id_;
  std::optional<checkpoint::Places> places_;  ///< of the writer
  metrics::Console console_;

  preparation::Prepared prepared_;
  assembly::LoadedModel loaded_;
  std::map<std::string, std::string> weights_;  ///< identities_of_weights, of when they were loaded
  std::unique_ptr<Objective> objective_;
  execution::KeyedRandom random_;
  std::optional<optim::AdamW> optimizer_;
  std::optional<optim::FusedBackward> fused_;
  std::optional<optim::Ema> ema_;
  std::optional<preparation::AheadBatches> ahead_;  ///< of prepared_, where devices compute
  std::optional<execution::Trainer> trainer_;
  std::optional<checkpoint::Attempts> attempts_;  ///< when this process goes on from a checkpoint
  sampling::SampleFolder samples_;

  Record record_;
  Profiler profiler_;
  distributed::First stop_;  ///< the signal that stops the run
  bool cut_short_ = false;   ///< by a signal on this rank: a validation or pictures
  std::filesystem::path last_grid_, last_checkpoint_, last_export_;
  PhaseBytes phases_;
  std::optional<StepMeter> steps_;  ///< since training began
  int64_t first_step_ = 0;          ///< steps done when this process took over
  bool recompute_logged_ = false;
  TestedSteps tested_;
};

}  // namespace trainer::run
