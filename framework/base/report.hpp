/// @file How a command that fails says so.
#pragma once

#include <trainer/sdk/error.hpp>

#include <string>

namespace trainer {

/// "error: MESSAGE" on stderr; with `json` also {"error": {"exit_code": 78, "message": "..."}} on stdout, for programs
/// that read the results there. Returns the exit code.
int report_error(ExitCode code, const std::string& message, bool json);

}  // namespace trainer
