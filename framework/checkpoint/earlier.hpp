/// @file What an earlier start left in a run folder, besides whole checkpoints: read before anything is done with it.
/// Free of LibTorch, so that it is fuzzed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace trainer::checkpoint {

/// The id in RUN/run.json; nullopt when there is no such file. Throws Error (bad_input) for a damaged one; io.
std::optional<std::string> stored_run_id(const std::filesystem::path& run_folder);

/// A recipe as text, and what it made: "the checkpoint", or "the log and the results".
struct Before {
  std::string recipe, what;
};
inline constexpr const char* kTheCheckpoint = "the checkpoint";

/// The recipe that trained what is in the folder, found without reading anything large: of the newest checkpoint whose
/// state can be read, or, without checkpoints, RUN/recipe.toml when there is a log or a result. nullopt: nothing could
/// be lost or mixed up, or all checkpoints are damaged (which is told when they are read whole). Throws Error (io).
std::optional<Before> recipe_before(const std::filesystem::path& run_folder);

}  // namespace trainer::checkpoint
