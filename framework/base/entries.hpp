/// @file What lies under a name on a disk. That nothing is there and that it cannot be told are two answers: a disk
/// that fails for a moment must not make files look deleted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trainer {

/// Links followed; not_found only where nothing is (ENOENT, ENOTDIR). Throws Error (io, IO_PERMISSION where that is the
/// reason) when it cannot be told.
std::filesystem::file_type type_of(const std::filesystem::path& path);

/// Bytes of a regular file; nullopt when there is none under that name. Throws Error (io) as `type_of`.
std::optional<uint64_t> size_of(const std::filesystem::path& file);

/// Names in a folder, sorted, hidden ones too; empty when there is no folder. Throws Error (io) as `type_of`.
std::vector<std::string> names_in(const std::filesystem::path& folder);

}  // namespace trainer
