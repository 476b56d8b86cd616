/// @file MANIFEST.json of a checkpoint: which files belong to it, how long they are and what they hash to. Written
/// last; a checkpoint without a whole manifest does not count. Free of LibTorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::checkpoint {

struct FileRecord {
  std::string name;  ///< one path component
  uint64_t bytes = 0;
  std::string xxh128;
};

struct Manifest {
  int64_t step = 0;    ///< optimiser steps done
  std::string run_id;  ///< of the run that wrote it
  std::vector<FileRecord> files;
  /// What made the state: versions, threads, devices, hashes of data and weights. Compared on resume.
  std::map<std::string, std::string> fingerprints;
};

inline constexpr const char* kManifestName = "MANIFEST.json";

/// One JSON object on the first lines, then a line "xxh128 <32 digits>" over all before it.
std::string manifest_text(const Manifest& manifest);

/// Throws Error (bad_input, CKPT_MANIFEST) for anything that `manifest_text` could not have written; `name` is for the
/// message.
Manifest parse_manifest(std::string_view text, const std::string& name);

/// Checks sizes and hashes of all files in `folder`. Throws Error (bad_input: CKPT_MISSING, CKPT_SIZE, CKPT_HASH; io).
void verify_files(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace trainer::checkpoint
