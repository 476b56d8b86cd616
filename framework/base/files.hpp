/// @file Small file helpers with our error type, and the one way to replace a file: temp, fsync, rename, fsync folder.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <trainer/sdk/error.hpp>

namespace trainer {

/// What std::filesystem could not look at, for the user: the path, why, and what to do where that is known. not_found
/// for what is not there, else io (IO_PERMISSION where that is the reason).
Error error_of(const std::filesystem::filesystem_error& error);

/// Whole content of a regular file of at most `limit` bytes. Throws Error: not_found, bad_input (not a regular file,
/// too large; `what` names it in the message, e.g. "recipe"), io.
std::string read_file(const std::filesystem::path& file, std::size_t limit, std::string_view what);

/// A rename would replace anything but a folder, /dev/null too: throws Error (io) unless `file` is a regular file, a
/// link to one, a link to nothing or not there.
void require_replaceable(const std::filesystem::path& file);

/// Writes `content` so that after a crash either the old or the new file is there, whole (reliability: temp file in
/// the same folder, fdatasync, rename, fsync of the folder). Throws Error (io), also as require_replaceable does.
void write_file_atomically(const std::filesystem::path& file, std::string_view content);

/// fsync of a folder, so that a rename in it is durable. Throws Error (io).
void sync_folder(const std::filesystem::path& folder);

/// fsync of the folder that holds this one, so that its name is durable. Throws Error (io).
void sync_name_of(const std::filesystem::path& folder);

/// Creates a folder and its parents, and makes the names of those it creates, and of the one they lie in, durable.
/// Throws Error (io, IO_PERMISSION where that is the reason).
void make_folders(const std::filesystem::path& folder);

/// `${XDG_CACHE_HOME:-$HOME/.cache}/trainer`, or empty when neither is set.
std::filesystem::path user_cache_folder();

/// `${XDG_CONFIG_HOME:-$HOME/.config}/trainer`, or empty when neither is set.
std::filesystem::path user_config_folder();

}  // namespace trainer
