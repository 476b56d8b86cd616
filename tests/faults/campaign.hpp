/// @file What the fault tests share: a run with two committed checkpoints, the save of a third, and the judgement of
/// what is found afterwards.
#pragma once

#include <checkpoint/store.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "crash_states.hpp"
#include "journal.hpp"

namespace trainer::faults {

/// A folder below the system's temporary one that goes away.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// An empty folder in it; the one before is deleted.
  const std::filesystem::path& fresh();

 private:
  std::filesystem::path path_, inner_;
};

/// The state after `step`: several tensors, one of several disk sectors.
checkpoint::Content state_of(int64_t step);

/// Saves steps 1 and 2 into `run`.
void prepare(const std::filesystem::path& run);
/// What is tested: step 3 is saved, then all but the newest two (or `keep`) are deleted. Calls `committed` when save
/// returned.
void save_third(const std::filesystem::path& run, const std::function<void()>& committed,
                const checkpoint::Keep& keep = {.newest = 2});

/// The start of a run whose folder is not there, below `scratch`, and its first save, of step 1.
inline constexpr const char* kNewRun = "results/new";
void save_first(const std::filesystem::path& scratch, const std::function<void()>& committed);

/// What becomes of un-synced changes in the crashes of a campaign: all or nothing of names and data, and `random` times
/// two random ones.
std::vector<Loss> losses(int random);

/// Counts of a campaign; the last line of its output.
struct Verdict {
  int64_t cases = 0, unrecoverable = 0, lost = 0, damaged = 0, unusable = 0;
  std::string first_problem;
  [[nodiscard]] std::string text() const;
};
/// Starts again in `run` as the program does: the newest checkpoint must be at least `committed` (0: there may be
/// none), with exactly the state of its step, nothing half-made may stay, and the next save must work.
void judge(const std::filesystem::path& run, int64_t committed, const std::string& name, Verdict& verdict);

/// A run as the program makes it, below `root`: RUN/run.json with its id, checkpoints of steps 1 and 2, the second of
/// them noted, the first exported; a fallback beside it.
void prepare_placed(const std::filesystem::path& root);
/// Its start and the save of step 3 as the last one, with a reserve; then what is older is deleted and step 3 exported.
/// Calls `committed` when save returned, and gives what it notes to `note`.
void save_placed(const std::filesystem::path& root, const std::function<void()>& committed,
                 const std::function<void(const std::string&)>& note);
/// As `judge`, of such a run: in either place, and the note of the newest checkpoint and exports are whole.
void judge_placed(const std::filesystem::path& root, int64_t committed, const std::string& name, Verdict& verdict);

}  // namespace trainer::faults
