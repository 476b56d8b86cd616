/// @file Everything that one LoRA training step needs, made from the settings that tools/bench gives to both
/// sides: model, adapter and strategies come from the plugins of the build, the data is synthetic.
#pragma once

#include <assembly/model_builder.hpp>
#include <execution/keyed_random.hpp>
#include <execution/trainer.hpp>
#include <optim/adamw.hpp>
#include <plugin/loader.hpp>

#include <nlohmann/json_fwd.hpp>

namespace trainer::bench {

class Setup {
 public:
  /// Keys of `settings`: device, model (folder of config.json and weights, or "" and shape, see random_model.hpp),
  /// plugins (folders), dtype ("fp32", "bf16"), checkpointing ("none", "full", or an entry of selective_checkpointing's
  /// `save`), elide, format ("" or a strategy that packs weights), fused, batch, height, width, tokens, rank.
  explicit Setup(const nlohmann::json& settings);
  execution::Trainer& trainer() { return *trainer_; }
  [[nodiscard]] int64_t parameters() const { return parameters_; }
  [[nodiscard]] at::Device device() const { return device_; }
  /// Heavy operations that the recompute of one step ran, and their floating-point operations, as the engine reports
  /// them; {-1, -1} where it reports none (nothing is recomputed, or all is). Known after a step.
  [[nodiscard]] std::pair<int64_t, double> recomputed();

 private:
  void load_strategies(const nlohmann::json& settings);
  void build_model(const nlohmann::json& settings);
  /// The weights; returns the text of config.json, "" when there is none.
  std::string open_weights(const nlohmann::json& settings, at::ScalarType dtype);
  std::vector<Parameter*> add_adapter(const Model& model, int64_t rank);

  at::Device device_;
  plugin::Loader loader_;
  std::shared_ptr<WeightSource> source_;
  std::unique_ptr<execution::MemoryStack> memory_;
  std::unique_ptr<assembly::SourceBuilder> builder_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Adapter> adapter_;
  std::unique_ptr<Objective> objective_;
  std::unique_ptr<execution::BatchSource> data_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::unique_ptr<execution::Trainer> trainer_;
  PlacementPlan placement_;
  execution::KeyedRandom random_{0};
  int64_t parameters_ = 0;
};

}  // namespace trainer::bench
