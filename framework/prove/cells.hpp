/// @file Cells of the equivalence matrix: a model, a dtype, what is trained, micro-batches, and a subset of the memory
/// strategies, against the run without them. Used by `trainer plugins check` and by tests/equivalence.
#pragma once

#include <plugin/loader.hpp>
#include <prove/comparison.hpp>
#include <recipe/schema.hpp>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace trainer::prove {

/// A model component with weights to train.
struct Subject {
  std::string name;                                     ///< "toy", "flux2 tiny-dev"
  std::string component;                                ///< in the registry
  std::string config;                                   ///< text of config.json
  std::function<std::shared_ptr<WeightSource>()> open;  ///< canonical names
};
/// The component's miniature with keyed random weights. Throws Error (not_found) when it offers none.
Subject miniature_of(plugin::Loader& loader, const std::string& component);
/// The model in `folder`, under the component's canonical names.
Subject model_in(plugin::Loader& loader, const std::string& component, const std::string& folder);

enum class Trained {
  default_targets,  ///< an adapter where the model wants it
  shared_layers,    ///< an adapter on what all blocks share: modulation and time embedder, or all outside the blocks
  all,              ///< every parameter
};
std::string text_of(Trained trained);

/// What is trained and how the samples come; the same for all strategies that are compared.
struct Setting {
  Subject subject;
  at::ScalarType dtype = at::kFloat;
  Trained trained = Trained::default_targets;
  int64_t micro_batches = 1;  ///< of three samples a step
  std::string adapter = "lora", objective = "flow_matching", placement = "single";
  std::vector<at::Device> devices{at::kCPU};  ///< for the placement
  double max_grad_norm = 1.0;
  bool several_devices = false;  ///< a plan that uses one of them alone is an Error (plugin_rejected)
  bool fused_backward = false;   ///< parameters are updated in backward; needs max_grad_norm 0, one micro-batch
};
std::string text_of(const Setting& setting);
/// For GoogleTest's messages.
inline void PrintTo(const Setting& setting, std::ostream* out) { *out << text_of(setting); }
/// {fp32, bf16} x Trained x {1, 3} micro-batches.
std::vector<Setting> all_settings(const Subject& subject);

/// Names of the memory strategies that the loader finds and that compute the same products as without them, sorted:
/// they are combined with everything.
std::vector<std::string> memory_strategies(const plugin::Loader& loader);
/// The others, whose manifest declares `rounding`: held to a tolerance, combined with the former.
std::vector<std::string> rounding_strategies(const plugin::Loader& loader);
/// The former, those that come with the program.
std::vector<std::string> own_strategies(const plugin::Loader& loader);
/// Fresh strategies with the defaults of their manifests, but for `changes` (by strategy, options that differ).
using Changes = std::map<std::string, Table>;
execution::MemoryStack stack_of(plugin::Loader& loader, const std::vector<std::string>& names,
                                const Changes& changes = {});
/// Those of `names` that pack weights: they change what is computed, the others must not.
std::vector<std::string> packing(plugin::Loader& loader, const std::vector<std::string>& names);
/// Of those of `names` that pack weights; exact otherwise.
recipe::Tolerance tolerance_of(plugin::Loader& loader, const std::vector<std::string>& names);

/// Three steps of one cell. `expanded`: no strategy acts, but weights are what the packing of `memory` says they are,
/// held densely. Throws Error (bad_recipe) when weights are to be trained and packed.
Trajectory run_cell(plugin::Loader& loader, const Setting& setting, execution::MemoryStack memory,
                    const Failure& failure = {}, bool expanded = false);

/// `run` against what it should equal. `may_refuse`: an error of the recipe (bad_recipe) is a refusal, for callers to
/// hold against what they expect; else it is a failure as any other.
Row compare_cells(const Setting& setting, const std::string& subset, const std::string& against,
                  const std::function<Trajectory()>& run, const std::function<Trajectory()>& expected,
                  bool may_refuse = false);

/// One subset against the run without strategies. What only recomputes or moves must equal it bit for bit, with packed
/// weights the packing alone; the packing alone must equal the run on what it says its weights are (within its declared
/// rounding), and all stay within its tolerance of the run with the weights of the file. A refusal (bad_recipe) is a
/// pass, for callers to hold against what they expect: two strategies want one place or declare a conflict, or one
/// needs another, or weights are trained and packed.
class SubsetCheck {
 public:
  SubsetCheck(plugin::Loader& loader, Setting setting, Changes changes = {})
      : loader_(loader), setting_(std::move(setting)), changes_(std::move(changes)) {}
  Row check(const std::vector<std::string>& names);
  /// The same over every subset of `strategies`, or those with `having` in it.
  std::vector<Row> check_all(const std::vector<std::string>& strategies, const std::string& having = "");

 private:
  Trajectory run(const std::vector<std::string>& names, bool expanded = false);
  const Trajectory& base(const std::vector<std::string>& packing);
  void judge_packed(Row& row, const Trajectory& run, const std::vector<std::string>& packed);

  plugin::Loader& loader_;
  Setting setting_;
  Changes changes_;
  std::map<std::vector<std::string>, Trajectory> bases_;  ///< by the strategies that pack weights
};
inline std::vector<Row> check_subsets(plugin::Loader& loader, const Setting& setting,
                                      const std::vector<std::string>& strategies, const std::string& having = "") {
  return SubsetCheck(loader, setting).check_all(strategies, having);
}

/// Steps that die before the forward or before the backward of each micro-batch and are repeated, against steps that
/// did not die.
std::vector<Row> check_failures(plugin::Loader& loader, const Setting& setting, const std::vector<std::string>& names);

}  // namespace trainer::prove
