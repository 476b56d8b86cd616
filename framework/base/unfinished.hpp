/// @file What a killed process left half-written: files under the names ".NAME.tmp-PID-N" that write_file_atomically
/// and the writer of safetensors files give before the rename.
#pragma once

#include <filesystem>
#include <string_view>

namespace trainer {

/// Whether it is such a name.
bool is_unfinished(std::string_view name);

/// Deletes such files in `folder` (not below it) whose process is not there any more on this machine; of this process,
/// too, so nothing of its own may be half-written there. For a folder that no other machine writes to; where a link
/// leads others may, so a folder that is one is left alone. What cannot be looked at or deleted stays.
void remove_unfinished(const std::filesystem::path& folder);

}  // namespace trainer
