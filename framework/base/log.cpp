#include <base/log.hpp>
#include <base/printable.hpp>

#include <spdlog/logger.h>
#include <spdlog/sinks/ansicolor_sink.h>

#include <memory>

namespace trainer {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

/// Never destroyed: threads and static destructors may log until the process ends.
spdlog::logger& logger() {
  static auto& instance = *[] {
    // The sink drops the colours by itself when stderr is no terminal.
    auto* made = new spdlog::logger("trainer", std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>());
    made->set_pattern("%T %^%-7l%$ %v");
    made->set_level(spdlog::level::info);
    return made;
  }();
  return instance;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(spdlog_level(level)); }

void log(LogLevel level, const std::string& text) {
  const std::string safe = printable_lines(text);
  logger().log(spdlog_level(level), spdlog::string_view_t(safe.data(), safe.size()));
}

}  // namespace trainer
