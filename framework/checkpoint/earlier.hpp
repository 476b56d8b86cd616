/// @file What an earlier start left in a run folder, besides whole checkpoints: read before anything is done with it.
/// Free of LibTorch, so that it is fuzzed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace trainer::checkpoint {

/// The id in RUN/run.json, or, where that file is damaged, of the newest whole checkpoint in RUN/ckpt; nullopt when
/// there is no such file. Throws Error (bad_input) for a damaged one without a checkpoint; io.
std::optional<std::string> stored_run_id(const std::filesystem::path& run_folder);

/// A recipe as text, and what it made: "the checkpoint", or "the log and the results".
struct Before {
  std::string recipe, what;
};
inline constexpr const char* kTheCheckpoint = "the checkpoint";

/// The recipe in the state of a checkpoint folder; nullopt for one that is damaged (whole_state) or holds none. Throws
/// Error (io).
std::optional<std::string> recipe_in(const std::filesystem::path& checkpoint);

/// The recipe that trained what is in the folder, found without reading anything large: of the newest checkpoint, in
/// the folder or below `fallback` (empty: none), whose state is whole (whole_state), or, without checkpoints,
/// RUN/recipe.toml when there is a log or a result. nullopt: nothing could be lost or mixed up, or all checkpoints are
/// damaged (which is told when they are read whole). Throws Error (bad_input) for a damaged run.json; io.
std::optional<Before> recipe_before(const std::filesystem::path& run_folder, const std::filesystem::path& fallback);

}  // namespace trainer::checkpoint
