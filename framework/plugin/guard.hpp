/// @file Every single call into a plugin goes through `guard`, so that what it throws names the plugin and the phase.
/// Not whole training steps: the engine's own errors must not be blamed on a plugin.
#pragma once

#include <string>
#include <utility>

namespace trainer::plugin {

/// Turns the exception in flight into a PluginError. An Error (a message for the user with an exit code of its own,
/// e.g. about damaged weights), an out-of-memory error (of a device or the processor) and one of a device pass unchanged. Only for use inside a catch
/// block.
[[noreturn]] void rethrow_as_plugin_error(const std::string& plugin, const std::string& phase);

/// Runs one call into a plugin.
template <typename Call>
auto guard(const std::string& plugin, const std::string& phase, Call&& call) -> decltype(call()) {
  try {
    return std::forward<Call>(call)();
  } catch (...) {
    rethrow_as_plugin_error(plugin, phase);
  }
}

}  // namespace trainer::plugin
