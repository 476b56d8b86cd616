/// @file Runs that go on from one checkpoint again and again and end at the same step: a scheduler that starts them
/// anew would do so for ever. RUN/attempts.json counts them. Free of LibTorch.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace trainer::checkpoint {

class Attempts {
 public:
  static constexpr int kSuspicious = 2;  ///< so many are reported,
  static constexpr int kLimit = 5;       ///< after so many no further one is made

  /// One more run goes on from the checkpoint of step `from`. Throws Error (bad_input, RUN_ATTEMPTS) instead when
  /// kLimit runs in a row that did so ended at one and the same step without ending well; it names an older checkpoint,
  /// of the folder or below `fallback` (empty: none). `may_write` (none: always) is asked before each change of the
  /// file whether the folder is still this run's: of another run's nothing is changed. The answer may be read from a
  /// file of a slow server: where steps are noted one that took 5 ms or more holds for a hundred times as long.
  Attempts(const std::filesystem::path& run_folder, int64_t from, const std::filesystem::path& fallback = {},
           std::function<bool()> may_write = {});

  /// Throws as the constructor would, and notes nothing.
  static void require_another(const std::filesystem::path& run_folder, int64_t from,
                              const std::filesystem::path& fallback = {});

  /// How many ended at one step before, in words for a warning; empty for less than kSuspicious.
  [[nodiscard]] const std::string& warning() const { return warning_; }

  /// Notes where the run is; call when a step is done. Written at once but not synced: it is about the process that
  /// ends, not the machine. A disk that takes no note is no reason to end a run.
  void reached(int64_t step);

  /// The run ended well, or was asked to stop: forgets all.
  void ended_well();

 private:
  struct Before {
    int64_t ended_at = 0;
    int failures = 0;
  };
  static Before before(const std::filesystem::path& run_folder, int64_t from, const std::filesystem::path& fallback);
  using Clock = std::chrono::steady_clock;
  void write() const;
  bool ask();
  std::filesystem::path file_;
  std::function<bool()> may_write_;
  Clock::time_point ask_again_;  ///< not before
  bool mine_ = true;             ///< what was answered last
  std::string warning_;
  int64_t from_ = 0, reached_ = 0;
  int64_t ended_at_ = 0;  ///< the step at which `failures_` runs ended
  int failures_ = 0;
};

}  // namespace trainer::checkpoint
