/// @file The newest checkpoint that a run committed, noted in RUN/run.json: so that a start that does not find it,
/// since its folder is gone or the recipe names another fallback, tells that instead of training from an older state.
/// Free of LibTorch.
#pragma once

#include <checkpoint/reserve.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trainer::checkpoint {

struct Committed {
  int64_t step = 0;
  std::filesystem::path folder;  ///< absolute
};

/// What the note says; nullopt without one. Throws Error (bad_input, RUN_NOTE) for a damaged one.
std::optional<Committed> committed(const std::filesystem::path& run_folder);

/// Notes it, durably and beside what else is in run.json, below the run's folder relative to that; nullopt takes the
/// note away. On a full disk the room of a small file that was kept for this is used. Throws Error (io).
void note_committed(const std::filesystem::path& run_folder, const std::string& run_id,
                    const std::optional<Committed>& newest);

/// The folder in which a run keeps checkpoints below checkpoint.fallback.
std::filesystem::path folder_in_fallback(const std::filesystem::path& fallback, const std::string& run_id);

/// Where checkpoints of a run may lie: RUN/ckpt, then its folder below `fallback` (empty: none).
std::vector<std::filesystem::path> roots_of(const std::filesystem::path& run_folder,
                                            const std::filesystem::path& fallback);

/// Steps that have a folder in RUN/ckpt or below `fallback` (empty: none), ascending; nothing is made or checked.
std::vector<int64_t> steps_anywhere(const std::filesystem::path& run_folder, const std::filesystem::path& fallback);

/// Throws Error (not_found, CKPT_GONE) when the noted checkpoint is newer than all of `steps` and was not set aside as
/// damaged, or when without any checkpoint there are results: something that was trained would be lost silently.
void require_committed(const std::filesystem::path& run_folder, const std::vector<int64_t>& steps);

}  // namespace trainer::checkpoint
