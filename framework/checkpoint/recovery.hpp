/// @file Which checkpoint of a run to go on from: the newest that is whole. Free of LibTorch, so that it is fuzzed.
#pragma once

#include <checkpoint/manifest.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trainer::checkpoint {

inline constexpr const char* kTensorsName = "rank-00000.safetensors";
inline constexpr const char* kStateName = "state.json";

/// "step-0000000250".
std::string step_name(int64_t step);

/// Steps that have a folder in `root`, ascending; contents are not checked. Throws Error (io).
std::vector<int64_t> steps_in(const std::filesystem::path& root);

/// The manifest of a checkpoint folder whose files are all there, as long as they should be and of the right hash; a
/// folder with the name of a step is of that step. Throws Error: not_found for no folder; bad_input with CKPT_MISSING,
/// CKPT_MANIFEST, CKPT_STEP, CKPT_SIZE or CKPT_HASH; io.
Manifest verify_folder(const std::filesystem::path& folder);

/// Whether the manifest is whole and all files are there and as long as it says; contents are not read. Throws
/// Error (io) when that cannot be told.
bool looks_whole(const std::filesystem::path& folder);

/// Calls `read` with the folders of `root` from the newest step down until it takes one, and returns that. One that it
/// refuses as bad_input is renamed to "<name>.bad-<code>" and reported in `notes`. nullopt when there never was a
/// checkpoint; throws Error (not_found) when there are some but none is whole: never a silent restart.
std::optional<std::filesystem::path> newest_whole(const std::filesystem::path& root,
                                                  const std::function<void(const std::filesystem::path&)>& read,
                                                  std::vector<std::string>& notes);

struct Choice {
  std::filesystem::path folder;
  Manifest manifest;
};

/// What a start would go on from: the newest in any of `roots` that `verify_folder` takes, of two of one step that of
/// the first root. Nothing is renamed; why newer ones are not taken stands in `notes`. nullopt and throws as
/// `newest_whole`.
std::optional<Choice> foretell_newest(const std::vector<std::filesystem::path>& roots, std::vector<std::string>& notes);

}  // namespace trainer::checkpoint
