/// @file Checkpoints of a run: RUN/ckpt/step-0000000250/ with tensors, state and manifest. A folder of that name
/// appears only by a rename, after everything in it is durable; the order of operations and what a crash after each
/// leaves behind stand in docs/reliability.md.
#pragma once

#include <checkpoint/manifest.hpp>
#include <trainer/sdk/tensor.hpp>

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trainer::checkpoint {

/// What a run must remember, besides its recipe.
struct Content {
  NamedTensors tensors;  ///< trained parameters, optimiser and EMA state, by name, in their own dtypes
  std::string state;     ///< JSON text: counters and the like
};

struct Loaded {
  Content content;
  Manifest manifest;
  std::filesystem::path folder;
};

/// Which checkpoints stay.
struct Keep {
  int64_t newest = 0;  ///< so many of the newest that look whole; 0: all. A single one is read back before others go
  int64_t every = 0;   ///< those whose step it divides, for good; 0: none
};
/// A checkpoint in whose folder lies a file of this name stays for good; users put it there.
inline constexpr const char* kPinName = "KEEP";

class Store {
 public:
  /// `run_id` marks what this run writes. Creates RUN/ckpt and removes what a crash left behind. `may_commit`, if any,
  /// is called before something is saved, before it gets its name, and before anything is deleted, and throws when that
  /// must not be.
  Store(const std::filesystem::path& run_folder, std::string run_id, std::function<void()> may_commit = {});

  /// Saves durably and returns the checkpoint's folder; one of the same step that is already there is kept when this
  /// run wrote it and it is whole, else set aside with a warning (".bad-CKPT_RUN" for another run's). One of a save of
  /// this object that failed after it had its name is withdrawn and saved anew. Throws Error: io (IO_NO_SPACE for a
  /// full disk; nothing is left behind and no checkpoint is lost), non_finite when a tensor holds NaN or infinity: such
  /// a state is never committed.
  std::filesystem::path save(int64_t step, const Content& content, std::map<std::string, std::string> fingerprints);

  /// Deletes what `keep` does not keep. Call after a successful save. Throws Error (io), or what may_commit throws.
  void rotate(const Keep& keep);

  /// The newest checkpoint that is whole. A damaged one is renamed to "<name>.bad-<code>" and reported in `notes`, and
  /// the next older is tried. Throws Error (not_found) when checkpoints exist but none is whole: never a silent
  /// restart.
  std::optional<Loaded> newest(std::vector<std::string>& notes);

  /// Steps that have a folder, ascending; contents are not checked.
  [[nodiscard]] std::vector<int64_t> steps() const;

 private:
  [[nodiscard]] std::filesystem::path folder_of(int64_t step) const;
  [[nodiscard]] bool is_kept(int64_t step) const;
  void withdraw(int64_t step);
  std::filesystem::path root_;  // RUN/ckpt
  std::string run_id_;
  std::function<void()> may_commit_;
  int attempts_ = 0;
  std::set<int64_t> known_;     ///< read whole or committed by this object
  std::set<int64_t> in_doubt_;  ///< renamed, but the name was not synced: after a failed fsync none tells more
};

/// Reads and verifies one checkpoint folder. Throws Error (bad_input, not_found).
Loaded load(const std::filesystem::path& folder);

}  // namespace trainer::checkpoint
