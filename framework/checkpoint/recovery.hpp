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

/// The manifest of a checkpoint, when it is whole and the files are as long as it says; their contents are not read.
/// nullopt for one that is damaged or not there. Throws Error (io) when that cannot be told.
std::optional<Manifest> whole_manifest(const std::filesystem::path& folder);

/// Whether there is one. Throws Error (io) when that cannot be told.
bool looks_whole(const std::filesystem::path& folder);

/// The state of a checkpoint that has a whole_manifest, when it has the hash that stands there; nullopt and throws as
/// that.
std::optional<std::string> whole_state(const std::filesystem::path& folder);

/// Folders of steps in any of `roots`, from the newest step down, of two of one step that of the first root first;
/// contents are not checked. Throws Error (io).
std::vector<std::filesystem::path> newest_first(const std::vector<std::filesystem::path>& roots);

/// Renames a damaged folder to "<name>.bad-<code>", with a number where that is taken, and returns the new name. Throws
/// Error (io).
std::string set_aside(const std::filesystem::path& folder, const std::string& code);

/// Calls `read` with the folders of `root` from the newest step down until it takes one, and returns that. One that it
/// refuses as bad_input is renamed to "<name>.bad-<code>" and reported in `notes`. nullopt when there never was a
/// checkpoint; throws Error (not_found) with the reasons, which `notes` then lacks, when there are some
/// but none is whole: never a silent restart.
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
