/// @file Progress on stderr: one line that redraws itself on a terminal, plain lines otherwise. Used by the cache phase
/// and the training loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace trainer::metrics {

/// What a step shows.
struct StepReport {
  int64_t step = 0, total = 0;  ///< steps done, steps of the run
  double loss = 0, smoothed = 0, lr = 0;
  double seconds_per_step = 0, seconds_left = 0;
  int64_t memory = 0;  ///< bytes; 0: not shown
};

struct ConsoleOptions {
  bool terminal = false;                        ///< redraw one line, at most 10 times a second
  int64_t plain_every = 0;                      ///< otherwise: a line every so many steps; 0: every 10 seconds
  std::function<void(std::string_view)> write;  ///< defaults to stderr
  std::function<int()> width;                   ///< columns; defaults to the terminal's
  std::function<std::chrono::steady_clock::time_point()> now;  ///< defaults to the clock
};

/// Whether stderr is a terminal that can redraw a line.
bool stderr_is_terminal();

class Console {
 public:
  explicit Console(ConsoleOptions options);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Shows a step. The last one (step == total) is always shown and ends the line.
  void step(const StepReport& report);
  /// Shows an item of a phase, e.g. (3, 20, "latents"). The last one is always shown and ends the line.
  void phase(int64_t done, int64_t total, const std::string& what);
  /// Takes the line away, so that other text can be printed; the next call draws again.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  void draw(const std::string& text, bool last);
  [[nodiscard]] bool due(std::chrono::milliseconds pause, bool forced);

  ConsoleOptions options_;
  bool drawn_ = false, shown_ = false;
  std::string what_;
  Clock::time_point last_{};
};

/// The line of a step in at most `width` columns: a bar where there is room, then fields are left out from the end.
std::string step_line(const StepReport& report, int width);
std::string phase_line(int64_t done, int64_t total, const std::string& what, int width);

}  // namespace trainer::metrics
