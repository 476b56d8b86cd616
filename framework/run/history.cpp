#include <base/json_depth.hpp>
#include <run/history.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace trainer::run {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", value);
  return text;
}

std::string at_step(const ValidationPoint& point) {
  return number(point.loss) + " (step " + std::to_string(point.step) + ")";
}

}  // namespace

std::vector<ValidationPoint> read_validations(const std::filesystem::path& log) {
  std::vector<ValidationPoint> points;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"validation_loss\"") == std::string::npos || nests_deeply(line)) continue;
    const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool whole =
        row.is_object() && row.contains("validation_loss") && row.contains("step") && row["step"].is_number_integer();
    if (!whole) continue;
    const auto& loss = row["validation_loss"];
    points.push_back(
        {row["step"].get<int64_t>(), loss.is_number() ? loss.get<double>() : std::numeric_limits<double>::quiet_NaN()});
  }
  return points;
}

bool holds_step(const std::vector<ValidationPoint>& points, int64_t step) {
  return std::any_of(points.begin(), points.end(), [&](const ValidationPoint& point) { return point.step == step; });
}

const ValidationPoint* lowest(const std::vector<ValidationPoint>& points) {
  const ValidationPoint* best = nullptr;
  for (const ValidationPoint& point : points)
    if (std::isfinite(point.loss) && (best == nullptr || point.loss < best->loss)) best = &point;
  return best;
}

nlohmann::ordered_json to_json(const std::vector<ValidationPoint>& points) {
  const auto json_of = [](const ValidationPoint* point) {
    return point == nullptr ? nlohmann::ordered_json()
                            : nlohmann::ordered_json{{"step", point->step}, {"loss", point->loss}};
  };
  return {{"first", json_of(points.empty() ? nullptr : &points.front())},
          {"last", json_of(points.empty() ? nullptr : &points.back())},
          {"lowest", json_of(lowest(points))}};
}

std::string in_words(const std::vector<ValidationPoint>& points) {
  if (points.empty()) return {};
  std::string text = at_step(points.front());
  if (points.size() > 1) text += " -> " + at_step(points.back());
  const ValidationPoint* best = lowest(points);
  if (points.size() > 2 && best != nullptr)
    text += ", lowest " + number(best->loss) + " at step " + std::to_string(best->step);
  return text;
}

}  // namespace trainer::run
