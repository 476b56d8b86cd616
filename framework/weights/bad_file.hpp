/// @file How the readers of weight files refuse one.
#pragma once

#include <trainer/sdk/error.hpp>

#include <string>

namespace trainer::weights {

/// Refuses a file: its name, the code of the rule (docs/file-rules.md), what is wrong. Exit code 65.
[[noreturn]] inline void fail(const std::string& file, const char* code, const std::string& text) {
  throw Error(ExitCode::bad_input, file + ": " + text, code);
}

}  // namespace trainer::weights
