/// @file The checkpoints of a run: the one it resumes from, and those that it saves.
#pragma once

#include <checkpoint/attempts.hpp>
#include <identity/fingerprints.hpp>
#include <identity/same_run.hpp>
#include <run/record.hpp>
#include <run/run_folder.hpp>
#include <run/training.hpp>

#include <filesystem>
#include <optional>

namespace trainer::run {

enum class Save {
  on_the_way,  ///< throws Error (io) on a full disk
  at_the_end,  ///< waits for room on a full disk, as long as checkpoint.final_save_wait says
};

class Checkpoints {
 public:
  /// Borrows all but `now` and `earlier_form` (an argument of identity::require_same_content).
  Checkpoints(const recipe::Recipe& recipe, const plugin::Found& found, RunFolder& folder, identity::Fingerprints now,
              identity::EarlierForm earlier_form, Record& record, distributed::Group& ranks);

  /// Collective. Puts the newest whole checkpoint, or the one that --resume names, into `training`. Throws Error when
  /// it is of another recipe, of other weights or of other data; nothing happens without one.
  void resume(Training& training);
  /// Before the first step. Throws Error when too many runs resumed from this checkpoint and ended at one step.
  void begin(Training& training);
  /// Keeps room on the disk for the last save, as checkpoint.reserve says. Call it when all other files are open.
  void reserve_room(Training& training);

  /// Whether the recipe wants one after this step.
  [[nodiscard]] bool is_due(int64_t step) const;
  /// The writer saves, and removes older checkpoints as checkpoint.keep says.
  void save(Training& training, Save when);
  /// Notes that a step is done. A later process that fails at the same step again sees this.
  void reached(int64_t step);
  /// Frees the room for results, after the last checkpoint.
  void release_room();
  /// Notes that the run ended well, or was asked to stop.
  void end();
  /// The newest; empty before there is one.
  [[nodiscard]] const std::filesystem::path& last() const { return last_; }

 private:
  std::optional<checkpoint::Loaded> find();
  void require_same(const checkpoint::Loaded& found) const;
  [[nodiscard]] checkpoint::Content content(Training& training) const;

  const recipe::Recipe& recipe_;
  const plugin::Found& found_;
  RunFolder& folder_;
  identity::Fingerprints now_;
  identity::EarlierForm earlier_form_;
  Record& record_;
  distributed::Group& ranks_;
  std::filesystem::path last_;
  std::optional<checkpoint::Attempts> attempts_;  ///< of the writer, when it resumed
};

}  // namespace trainer::run
