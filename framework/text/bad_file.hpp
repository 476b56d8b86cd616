/// @file How the readers of tokenizer.json refuse one.
#pragma once

#include <trainer/sdk/error.hpp>

#include <string>

namespace trainer::text {

/// Refuses a tokenizer: the code of the rule (docs/file-rules.md), where in the file, what is wrong. Exit code 65.
[[noreturn]] inline void fail(const char* code, const std::string& where, const std::string& what) {
  throw Error(ExitCode::bad_input, where + ": " + what, code);
}

}  // namespace trainer::text
