/// @file The validations that a run has behind it, as its log tells them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace trainer::run {

struct ValidationPoint {
  int64_t step = 0;
  double loss = 0;  ///< NaN: it was not finite
};

/// Of log.jsonl, in its order; none when there is no file. Lines that are no JSON are passed over.
std::vector<ValidationPoint> read_validations(const std::filesystem::path& log);

/// Whether there is one of this step.
bool holds_step(const std::vector<ValidationPoint>& points, int64_t step);

/// "0.5312 (step 0) -> 0.4711 (step 600), lowest 0.4655 at step 450"; empty without points.
std::string in_words(const std::vector<ValidationPoint>& points);

/// {"first": {"step": 0, "loss": 0.5312}, "last": ..., "lowest": ...}, lowest null when no loss is finite.
nlohmann::ordered_json to_json(const std::vector<ValidationPoint>& points);

/// The point with the lowest finite loss, the first of equal ones; null when no loss is finite.
const ValidationPoint* lowest(const std::vector<ValidationPoint>& points);

}  // namespace trainer::run
