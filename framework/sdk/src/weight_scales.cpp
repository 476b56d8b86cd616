/// @file See weight_scales.hpp.
#include <c10/core/ScalarType.h>
#include <trainer/sdk/weight_scales.hpp>

#include <array>
#include <span>

namespace trainer {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::array kScales{".weight_scale"sv, ".scale_weight"sv, ".weight_scale_inv"sv};
constexpr std::array kOthers{".input_scale"sv, ".scale_input"sv, ".comfy_quant"sv};
constexpr std::string_view kWeight = ".weight";

}  // namespace

std::string_view companion_layer(std::string_view name) {
  for (const auto& suffixes : {std::span(kScales), std::span(kOthers)})
    for (const std::string_view suffix : suffixes)
      if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  return {};
}

std::vector<std::string> scales_of(const WeightSource& source, std::string_view name) {
  std::vector<std::string> found;
  if (!name.ends_with(kWeight)) return found;
  const std::string layer(name.substr(0, name.size() - kWeight.size()));
  for (const std::string_view suffix : kScales)
    if (std::string scale = layer + std::string(suffix); source.find(scale) != nullptr)
      found.push_back(std::move(scale));
  return found;
}

bool is_fp8_companion(const WeightSource& source, std::string_view name) {
  if (name == "scaled_fp8" || name.ends_with(".scaled_fp8")) return true;
  const std::string_view layer = companion_layer(name);
  if (layer.empty()) return false;
  const TensorInfo* weight = source.find(std::string(layer) + std::string(kWeight));
  return weight != nullptr && c10::isFloat8Type(weight->dtype);
}

}  // namespace trainer
