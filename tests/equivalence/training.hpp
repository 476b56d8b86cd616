/// @file Three optimiser steps of a model under chosen memory strategies, every gradient recorded: what the cells of
/// the equivalence matrix compare.
#pragma once

#include <plugin/loader.hpp>
#include <train/batch_source.hpp>
#include <train/memory_stack.hpp>

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace trainer::equivalence {

/// A model component with weights to train.
struct Subject {
  std::string name;  ///< "toy", "flux2 tiny-dev"
  std::string component;
  std::string config;  ///< text of config.json
  std::function<std::shared_ptr<WeightSource>()> open;
  /// Conditioning of n samples; same numbers for the same first sample key.
  std::function<NamedTensors(uint64_t key)> conditioning;
};

/// The toy of tests/out_of_tree and, when its plugin was built, flux2 on the parity directories.
std::vector<Subject> subjects(plugin::Loader& loader);

enum class Trained { default_targets, modulation_and_time, all };
std::string text_of(Trained trained);

/// What is trained and how the samples come; the same for all strategies that are compared.
struct Setting {
  Subject subject;
  at::ScalarType dtype = at::kFloat;
  Trained trained = Trained::default_targets;
  int64_t micro_batches = 1;  ///< of three samples a step
};
std::string text_of(const Setting& setting);
/// For GoogleTest's messages.
inline void PrintTo(const Setting& setting, std::ostream* out) { *out << text_of(setting); }

/// All that a run of three steps shows.
struct Trajectory {
  std::vector<double> losses;  ///< per step
  /// Per parameter: what each step and micro-batch brings, before it is added up. (Within one backward, parameters of a
  /// recomputed block get theirs in another order.)
  std::map<std::string, std::vector<at::Tensor>> gradients;
  std::map<std::string, at::Tensor> weights;  ///< trained tensors after the last step
  [[nodiscard]] std::size_t gradient_count() const;
};
/// Where two runs differ first, or "".
std::string difference(const Trajectory& a, const Trajectory& b);

/// Three samples a step, in memory; fails once at a chosen micro-batch when told to.
class Samples final : public train::BatchSource {
 public:
  Samples(const Setting& setting, int64_t channels);
  [[nodiscard]] int64_t micro_batches() const override { return micro_batches_; }
  Batch batch(int64_t step, int64_t micro) override;
  [[nodiscard]] std::vector<std::string> files(int64_t, int64_t) const override { return {"memory"}; }
  int64_t fail_at_micro = -1;

 private:
  int64_t micro_batches_, channels_;
  std::function<NamedTensors(uint64_t)> conditioning_;
};

/// Fresh strategies with the defaults of their manifests.
train::MemoryStack stack_of(plugin::Loader& loader, const std::vector<std::string>& names);
/// Names of all memory strategies that the loader finds.
std::vector<std::string> memory_strategies(const plugin::Loader& loader);
/// Those of `names` that pack weights: they change what is computed, the others must not.
std::vector<std::string> packing(plugin::Loader& loader, const std::vector<std::string>& names);

/// `fail_at_micro` >= 0: the first attempt at each step dies at that micro-batch and is repeated.
Trajectory train_three_steps(plugin::Loader& loader, const Setting& setting, const train::MemoryStack& memory,
                             int64_t fail_at_micro = -1);

}  // namespace trainer::equivalence
