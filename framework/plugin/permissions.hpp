/// @file Who else could have put a plugin there: checked before its library is opened, since a plugin is code that runs
/// with the user's rights.
#pragma once

#include <filesystem>
#include <string>

namespace trainer::plugin {

/// Why a stranger could have changed this file or folder: who owns it, or who may write to it. Empty when nobody but
/// the user, root and who owns this program could. A group counts as nobody when it is its owner's private one, and a
/// folder that all may write to when it is sticky, as /tmp is: they cannot replace what is in it.
std::string writable_by_others(const std::filesystem::path& path);

/// Throws Error (plugin_rejected, PLUGIN_PERM) when others can write to the library or to a folder above it that does
/// not hold the running program too, at each place that its symbolic links lead through. TRAINER_PLUGIN_PERM=ignore in
/// the environment lets everything pass.
void require_safe_permissions(const std::string& plugin, const std::filesystem::path& library);

}  // namespace trainer::plugin
