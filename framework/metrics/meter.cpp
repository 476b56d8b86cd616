#include <metrics/meter.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace trainer::metrics {
namespace {

/// The number behind `name` at the start of a line.
int64_t counted(std::string_view status, std::string_view name) {
  for (std::size_t at = 0; at < status.size();) {
    const std::size_t end = std::min(status.find('\n', at), status.size());
    std::string_view line = status.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(name)) continue;
    line.remove_prefix(std::min(line.find_first_of("0123456789"), line.size()));
    int64_t count = 0;
    std::from_chars(line.data(), line.data() + line.size(), count);
    return count;
  }
  return 0;
}

int64_t kilobytes(std::string_view status, std::string_view name) { return 1024 * counted(status, name); }

}  // namespace

void SmoothedMean::add(double value) {
  if (!std::isfinite(value)) return;
  sum = smoothing * sum + (1 - smoothing) * value;
  weight = smoothing * weight + (1 - smoothing);
}

double SmoothedMean::value() const { return weight > 0 ? sum / weight : std::numeric_limits<double>::quiet_NaN(); }

void Throughput::step_done(Clock::time_point now) {
  last_seconds_ = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  if (++steps_ > 1) seconds_.add(last_seconds_);
}

namespace {

/// Of a file of /proc, which has no known size: read to its end.
std::string all_of(const char* name) {
  std::ifstream file(name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The number at the start of a file; nothing for "max" or no file.
std::optional<int64_t> number_in(const std::filesystem::path& file) {
  const std::string text = all_of(file.c_str());
  int64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || number < 0) return std::nullopt;
  return number;
}

/// What one control group's limit leaves; pages of files that the kernel drops when it needs room do not count.
std::optional<int64_t> available_in(const std::filesystem::path& folder, bool old) {
  const auto limit = number_in(folder / (old ? "memory.limit_in_bytes" : "memory.max"));
  const auto used = number_in(folder / (old ? "memory.usage_in_bytes" : "memory.current"));
  constexpr int64_t kNone = int64_t{1} << 60;  // version 1 writes the largest number of pages for "no limit"
  if (!limit || !used || *limit >= kNone) return std::nullopt;
  const int64_t dropped =
      counted(all_of((folder / "memory.stat").c_str()), old ? "total_inactive_file " : "inactive_file ");
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - dropped));
}

}  // namespace

MemoryUse memory_use() { return parse_memory_use(all_of("/proc/self/status")); }

int64_t available_memory() {
  const int64_t machine = parse_available_memory(all_of("/proc/meminfo"));
  const std::optional<int64_t> group = available_in_groups(all_of("/proc/self/cgroup"), "/sys/fs/cgroup");
  return group && machine > 0 ? std::min(machine, *group) : machine;
}

std::optional<int64_t> available_in_groups(std::string_view membership, const std::filesystem::path& root) {
  std::optional<int64_t> least;
  for (std::size_t at = 0; at < membership.size();) {
    const std::size_t end = std::min(membership.find('\n', at), membership.size());
    const std::string_view line = membership.substr(at, end - at);
    at = end + 1;
    // "0::/path" (version 2), "4:memory:/path" (version 1, one tree a controller)
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view kinds = line.substr(first + 1, second - first - 1);
    const bool old = (',' + std::string(kinds) + ',').find(",memory,") != std::string::npos;
    if (!kinds.empty() && !old) continue;
    const std::filesystem::path top = old ? root / "memory" : root;
    // In a container the path may be the host's, and its own group lies at the top.
    std::filesystem::path folder = top / std::filesystem::path(line.substr(second + 1)).relative_path();
    for (;; folder = folder.parent_path()) {
      if (const auto free = available_in(folder, old)) least = std::min(least.value_or(*free), *free);
      if (folder == top || folder == folder.parent_path()) break;
    }
  }
  return least;
}

int64_t parse_available_memory(std::string_view meminfo) { return kilobytes(meminfo, "MemAvailable:"); }

MemoryUse parse_memory_use(std::string_view status) {
  return {kilobytes(status, "VmRSS:"), kilobytes(status, "VmHWM:")};
}

}  // namespace trainer::metrics
