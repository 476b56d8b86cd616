/// @file Whether the program can use a plugin, as far as its manifest and the first bytes of its library tell: nothing
/// is opened. Free of LibTorch.
#pragma once

#include <plugin/manifest.hpp>

#include <string>

namespace trainer::plugin {

/// The SDK's API that this program speaks.
inline constexpr auto kApi = "0.1";

/// What a plugin must have been built for.
struct Program {
  std::string api, torch, fingerprint;
};

/// In which fields a fingerprint differs, a line each: "\n  compiler: plugin gcc13, program gcc12"; "" when it does
/// not.
std::string fingerprint_difference(const std::string& theirs, const std::string& ours);

/// "built for LibTorch 2.10.0, this program has 2.11.0 (FILE); rebuild the plugin" and the like; "" for a match.
std::string mismatch(const Manifest& manifest, const Program& program);

/// Why it cannot be used: `mismatch`, or a library that is not there, cut short, none at all, or that others could have
/// put there. "" when nothing of that speaks against it.
std::string unusable(const Manifest& manifest, const Program& program);

}  // namespace trainer::plugin
