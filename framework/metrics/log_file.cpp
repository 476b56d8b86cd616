#include <metrics/log_file.hpp>

#include <base/files.hpp>

#include <limits>
#include <nlohmann/json.hpp>

namespace trainer::metrics {
namespace {

/// The "step" of a line, or none: such a line stays with the one before it.
int64_t step_of(std::string_view line) {
  const auto object = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
  if (!object.is_object()) return std::numeric_limits<int64_t>::min();
  const auto step = object.find("step");
  const bool given = step != object.end() && step->is_number_integer();
  return given ? step->get<int64_t>() : std::numeric_limits<int64_t>::min();
}

template <typename Value>
const Value& json_of(const Value& value) {
  return value;
}
nlohmann::ordered_json json_of(const LogGroups& groups) { return to_json(groups); }

}  // namespace

nlohmann::ordered_json to_json(const LogGroups& groups) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [group, numbers] : groups)
    for (const auto& [name, number] : numbers) object[group][name] = number;
  return object;
}

uint64_t kept_bytes(std::string_view text, int64_t step) {
  std::size_t kept = 0;
  for (;;) {
    const std::size_t end = text.find('\n', kept);
    if (end == std::string_view::npos || step_of(text.substr(kept, end - kept)) > step) return kept;
    kept = end + 1;
  }
}

LogFile::LogFile(const std::filesystem::path& file, int64_t step) : file_(file, AppendFile::Mode::open_or_create) {
  constexpr std::size_t kLimit = std::size_t{4} << 30;
  file_.truncate(kept_bytes(read_file(file, kLimit, "log"), step));
}

void LogFile::write(int64_t step, const std::vector<LogField>& fields) {
  nlohmann::ordered_json line = {{"step", step}};
  for (const LogField& field : fields) {
    std::visit([&](const auto& value) { line[field.first] = json_of(value); }, field.second);
  }
  file_.append(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace trainer::metrics
