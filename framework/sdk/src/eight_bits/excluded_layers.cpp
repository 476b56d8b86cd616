/// @file The option `exclude`.
#include <trainer/sdk/eight_bit_weights.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace trainer::eight_bits {
namespace {

constexpr std::array kUsual{"*embed*", "*modulation*", "norm_out*", "proj_out*", "*time*"};

}  // namespace

ExcludedLayers::ExcludedLayers(std::string strategy, std::vector<std::string> patterns)
    : strategy_(std::move(strategy)), patterns_(std::move(patterns)) {}

bool ExcludedLayers::contains(const std::string& layer) const {
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const std::string& pattern) { return matches_glob(pattern, layer); });
}

void ExcludedLayers::require_matches(const WeightSource& source) {
  if (std::exchange(checked_, true)) return;
  constexpr std::string_view kEnding = ".weight";
  std::vector<std::string> layers;
  for (const std::string& name : source.names())
    if (name.ends_with(kEnding)) layers.push_back(name.substr(0, name.size() - kEnding.size()));
  for (const std::string& pattern : patterns_) {
    const auto matches = [&](const std::string& layer) { return matches_glob(pattern, layer); };
    if (std::find(kUsual.begin(), kUsual.end(), pattern) != kUsual.end() ||
        std::any_of(layers.begin(), layers.end(), matches))
      continue;
    throw Error(ExitCode::bad_recipe, "memory." + strategy_ + ".exclude: \"" + pattern +
                                          "\" matches no layer of this model" + did_you_mean(pattern, layers) +
                                          "; `trainer inspect` lists their names, * stands for any letters");
  }
}

}  // namespace trainer::eight_bits
