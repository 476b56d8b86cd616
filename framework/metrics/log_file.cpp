#include <metrics/log_file.hpp>

#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace trainer::metrics {
namespace {

/// Lines that this program writes are far shorter; of a longer one no step is read.
constexpr std::size_t kLongestLine = std::size_t{16} << 20;

/// Whether a line has a "step" after `step`. One without a step stays with the line before it.
bool is_after(std::string_view line, int64_t step) {
  const auto object = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
  if (!object.is_object()) return false;
  const auto found = object.find("step");
  if (found == object.end() || !found->is_number()) return false;
  if (found->is_number_float()) return found->get<double>() > static_cast<double>(step);
  return (found->is_number_unsigned() && found->get<uint64_t>() > uint64_t{INT64_MAX}) || found->get<int64_t>() > step;
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

uint64_t kept_bytes(std::istream& log, int64_t step) {
  uint64_t kept = 0, passed = 0;  // whole lines that stay; bytes seen
  std::string line;
  std::vector<char> piece(std::size_t{1} << 20);
  for (;;) {
    log.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    std::string_view rest(piece.data(), static_cast<std::size_t>(log.gcount()));
    if (rest.empty()) return kept;
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n'), size = std::min(end, rest.size());
      if (line.size() <= kLongestLine) line.append(rest.substr(0, size));
      passed += size;
      rest.remove_prefix(size);
      if (end == std::string_view::npos) break;
      if (line.size() <= kLongestLine && is_after(line, step)) return kept;
      rest.remove_prefix(1);
      kept = ++passed;
      line.clear();
    }
  }
}

LogFile::LogFile(const std::filesystem::path& file, int64_t step) : file_(file, AppendFile::Mode::open_or_create) {
  if (!std::filesystem::is_regular_file(file)) throw Error(ExitCode::bad_input, file.string() + " is no regular file");
  std::ifstream log(file, std::ios::binary);
  if (!log) throw Error(ExitCode::io, "cannot read the log " + file.string());
  const uint64_t kept = kept_bytes(log, step);
  if (log.bad()) throw Error(ExitCode::io, "cannot read the log " + file.string());
  file_.truncate(kept);
}

void LogFile::write(int64_t step, const std::vector<LogField>& fields) {
  nlohmann::ordered_json line = {{"step", step}};
  for (const LogField& field : fields) {
    std::visit([&](const auto& value) { line[field.first] = json_of(value); }, field.second);
  }
  file_.append(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace trainer::metrics
