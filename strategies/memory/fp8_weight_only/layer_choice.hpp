/// @file Which layers a strategy packs: its option `exclude`.
#pragma once

#include <trainer/sdk/weights.hpp>

#include <string>
#include <vector>

namespace trainer::fp8 {

class LayerChoice {
 public:
  /// `strategy` is for messages; `exclude` are names of layers with * as wildcard.
  LayerChoice(std::string strategy, std::vector<std::string> exclude);
  /// Whether the layer stays in the model's dtype.
  [[nodiscard]] bool excludes(const std::string& layer) const;
  /// Throws Error (bad_recipe) for a pattern that matches no layer of the file, unless it is one of the manifests'
  /// default: names of several families, of which a model has some. Looks once.
  void require_matches(const WeightSource& source);

 private:
  std::string strategy_;
  std::vector<std::string> exclude_;
  bool checked_ = false;
};

}  // namespace trainer::fp8
