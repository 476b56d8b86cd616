#include <optim/lr_schedule.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trainer::optim {

double LrSchedule::at(int64_t step) const {
  if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const double length = static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
  const double progress = std::clamp(static_cast<double>(step - warmup_steps) / length, 0.0, 1.0);
  const auto cosine = [](double x) { return 0.5 * (1.0 + std::cos(std::numbers::pi * x)); };
  double factor = 0.0;
  if (kind == "constant")
    factor = 1.0;
  else if (kind == "linear")
    factor = 1.0 - progress;
  else if (kind == "cosine")
    factor = cosine(progress);
  else if (kind == "cosine_restarts")
    factor = progress >= 1.0 ? 0.0 : cosine(std::fmod(progress * static_cast<double>(cycles), 1.0));
  else
    throw Error(ExitCode::bad_recipe, "optimizer.schedule: unknown kind \"" + kind + "\"");
  return lr * (min_factor + (1.0 - min_factor) * factor);
}

}  // namespace trainer::optim
