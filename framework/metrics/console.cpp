#include <metrics/console.hpp>

#include <base/units.hpp>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

namespace trainer::metrics {
namespace {

constexpr int kBarColumns = 24, kMinBarColumns = 8;
constexpr int kUnlimited = 1 << 20;  // plain lines

template <typename... Numbers>
std::string formatted(const char* format, Numbers... numbers) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), format, numbers...);
  return text.data();
}

std::string number(double value) { return std::isfinite(value) ? formatted("%.4f", value) : formatted("%f", value); }

std::string bar(int64_t done, int64_t total, int columns) {
  const double share = total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 1.0;
  const auto filled = static_cast<std::size_t>(share * columns);
  return "[" + std::string(filled, '#') + std::string(static_cast<std::size_t>(columns) - filled, '-') + "]";
}

int percent(int64_t done, int64_t total) { return total > 0 ? static_cast<int>(100 * done / total) : 100; }

/// `head` and as many fields as fit, and a bar behind the head where there is room left.
std::string fitted(const std::string& head, std::span<const std::string> fields, int64_t done, int64_t total,
                   int width) {
  std::string text;
  for (const std::string& field : fields) {
    if (static_cast<int>(head.size() + text.size() + field.size()) + 2 > width) break;
    text += "  " + field;
  }
  const int room = width - static_cast<int>(head.size() + text.size()) - 3;  // space and brackets
  if (width == kUnlimited || room < kMinBarColumns)
    return (head + text).substr(0, static_cast<std::size_t>(std::max(width, 0)));
  return head + " " + bar(done, total, std::min(room, kBarColumns)) + text;
}

std::string right_aligned(int64_t number, int64_t widest) {
  const std::string text = std::to_string(number), other = std::to_string(widest);
  return std::string(other.size() > text.size() ? other.size() - text.size() : 0, ' ') + text;
}

void write_stderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

int stderr_width() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

std::string step_line(const StepReport& report, int width) {
  const std::string head = "step " + right_aligned(report.step, report.total) + "/" + std::to_string(report.total) +
                           formatted(" %3d%%", percent(report.step, report.total));
  std::vector<std::string> fields = {"loss " + number(report.loss), "smooth " + number(report.smoothed),
                                     "lr " + formatted("%.2e", report.lr),
                                     formatted("%.3f s/step", report.seconds_per_step)};
  if (std::isfinite(report.seconds_left) && report.step < report.total)
    fields.push_back("ETA " + format_seconds(report.seconds_left));
  if (report.memory > 0) fields.push_back("RSS " + format_bytes(static_cast<double>(report.memory)));
  return fitted(head, fields, report.step, report.total, width);
}

std::string phase_line(int64_t done, int64_t total, const std::string& what, int width) {
  const std::string head = what + " " + right_aligned(done, total) + "/" + std::to_string(total);
  return fitted(head, {}, done, total, width);
}

Console::Console(ConsoleOptions options) : options_(std::move(options)) {
  if (!options_.write) options_.write = write_stderr;
  if (!options_.width) options_.width = stderr_width;
  if (!options_.now) options_.now = Clock::now;
}

Console::~Console() { clear(); }

bool Console::due(std::chrono::milliseconds pause, bool forced) {
  const Clock::time_point now = options_.now();
  if (!forced && shown_ && now - last_ < pause) return false;
  shown_ = true;
  last_ = now;
  return true;
}

void Console::draw(const std::string& text, bool last) {
  if (!options_.terminal) return options_.write(text + "\n");
  options_.write("\r\x1B[K" + text + (last ? "\n" : ""));
  drawn_ = !last;
}

void Console::step(const StepReport& report) {
  const bool last = report.step == report.total;
  const bool counted = !options_.terminal && options_.plain_every > 0;
  const bool forced = last || (counted && report.step % options_.plain_every == 0);
  const auto pause = options_.terminal ? std::chrono::milliseconds(100)
                     : counted         ? std::chrono::hours(1'000'000)
                                       : std::chrono::milliseconds(10'000);
  if (due(pause, forced)) draw(step_line(report, options_.terminal ? options_.width() - 1 : kUnlimited), last);
}

void Console::phase(int64_t done, int64_t total, const std::string& what) {
  const bool fresh = std::exchange(what_, what) != what;  // a new phase shows at once
  const auto pause = std::chrono::milliseconds(options_.terminal ? 100 : 10'000);
  if (!due(pause, done == total || fresh)) return;
  draw(phase_line(done, total, what, options_.terminal ? options_.width() - 1 : kUnlimited), done == total);
  if (done < total) return;
  what_.clear();
  shown_ = false;  // what comes next shows at once
}

void Console::clear() {
  if (drawn_) options_.write("\r\x1B[K");
  drawn_ = false;
}

}  // namespace trainer::metrics
