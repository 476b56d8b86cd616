/// @file log.jsonl: what a run measured, one JSON object a line, for people with scripts. Appended and flushed per
/// line; a resume cuts what was written after its checkpoint, so every step stands in the file once.
#pragma once

#include <metrics/append_file.hpp>

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace trainer::metrics {

/// Numbers by name by group, {"cuda:0": {"step": 1, ...}, ...}, in this order.
using LogGroups = std::vector<std::pair<std::string, std::vector<std::pair<std::string, int64_t>>>>;
/// As in a line.
nlohmann::ordered_json to_json(const LogGroups& groups);
/// Fields in the order of the line. Numbers that are not finite are written as null.
using LogField =
    std::pair<std::string, std::variant<bool, int64_t, double, std::string, std::vector<double>, LogGroups>>;

class LogFile {
 public:
  /// Opens or creates the file and keeps the lines up to the last before the first with "step" > `step` (the step a
  /// run starts from: 0 for a new one); a partial last line goes, too. Throws Error (io).
  LogFile(const std::filesystem::path& file, int64_t step);
  /// {"step": step, fields...}
  void write(int64_t step, const std::vector<LogField>& fields);

 private:
  AppendFile file_;
};

/// Bytes of the lines of `log` that a start at `step` keeps.
uint64_t kept_bytes(std::istream& log, int64_t step);

}  // namespace trainer::metrics
