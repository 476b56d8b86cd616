#include <metrics/meter.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

namespace trainer::metrics {
namespace {

/// The number of kB behind `name` at the start of a line, in bytes.
int64_t kilobytes(std::string_view status, std::string_view name) {
  for (std::size_t at = 0; at < status.size();) {
    const std::size_t end = std::min(status.find('\n', at), status.size());
    std::string_view line = status.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(name)) continue;
    line.remove_prefix(std::min(line.find_first_of("0123456789"), line.size()));
    int64_t count = 0;
    std::from_chars(line.data(), line.data() + line.size(), count);
    return count * 1024;
  }
  return 0;
}

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

}  // namespace

MemoryUse memory_use() { return parse_memory_use(all_of("/proc/self/status")); }

int64_t available_memory() { return parse_available_memory(all_of("/proc/meminfo")); }

int64_t parse_available_memory(std::string_view meminfo) { return kilobytes(meminfo, "MemAvailable:"); }

MemoryUse parse_memory_use(std::string_view status) {
  return {kilobytes(status, "VmRSS:"), kilobytes(status, "VmHWM:")};
}

}  // namespace trainer::metrics
