/// @file Brings LibTorch and the engine into this process, or says clearly why not.
#pragma once

#include <cli/layout.hpp>
#include <nlohmann/json_fwd.hpp>

#include <string>

namespace trainer::cli {

/// Loads LibTorch from the first place that has one, then the engine, and calls it with `request` completed by the
/// places of the program's parts. `libtorch` is the user's choice or empty.
/// Throws Error (unavailable) when LibTorch is missing, incomplete or of another version.
int call_engine(const std::string& command, nlohmann::json request, const Layout& layout, const std::string& libtorch);

}  // namespace trainer::cli
