/// @file What a run will write, and whether there is room for it.
#pragma once

#include <assembly/assemble.hpp>
#include <planning/dry_run.hpp>
#include <preparation/cache_phase.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trainer::planning {

/// Bytes, estimated upwards.
struct DiskNeed {
  uint64_t checkpoint = 0;   ///< one
  uint64_t checkpoints = 0;  ///< as many as there are at one time
  uint64_t reserve = 0;      ///< kept free for the last save (checkpoint.reserve)
  uint64_t result = 0;       ///< one export
  uint64_t results = 0;      ///< all of the run
  uint64_t cache = 0;        ///< what is not there yet; 0 when it is not known
  [[nodiscard]] std::string text() const;
};

/// `batch`: shapes of the largest samples, nullopt when they are not known; `missing`: what is still to be cached.
DiskNeed disk_need(assembly::Assembly& assembly, const preparation::Uncached& missing,
                   const std::optional<BatchShape>& batch);

/// That the folder, which the recipe names by `key`, is there or can be made, and may be written to. Returns it or the
/// first above it that is there. Throws Error: io where that is a file, locked without the right to write.
std::filesystem::path require_writable(const std::filesystem::path& wanted, const std::string& key);

/// What is free where the run writes. Throws Error (io, IO_NO_SPACE) when a file system has no room for all of the run
/// that will lie there at one time (with a checkpoint.fallback on another one, which has that room: for one checkpoint
/// and a result), or checkpoint.fallback none for one checkpoint; and as require_writable for each of the folders.
std::string check_room(const recipe::Recipe& recipe, const DiskNeed& need);

}  // namespace trainer::planning
