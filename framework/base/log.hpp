/// @file Log lines on stderr. spdlog is used in log.cpp and nowhere else (the wheel's fmt shadows the system's).
#pragma once

#include <string>

namespace trainer {

enum class LogLevel { debug, info, warning, error };

/// Lowest level that is printed; `info` at start.
void set_log_level(LogLevel level);
/// One line on stderr (no trailing newline in `text`). Thread-safe.
void log(LogLevel level, const std::string& text);
inline void log_info(const std::string& text) { log(LogLevel::info, text); }
inline void log_warning(const std::string& text) { log(LogLevel::warning, text); }

}  // namespace trainer
