/// @file The one way from a model's files to a model that trains, draws, is planned or is proven.
#pragma once

#include <adapter/adapter_file.hpp>
#include <assembly/components.hpp>
#include <assembly/cut.hpp>
#include <assembly/model_builder.hpp>
#include <assembly/weights.hpp>
#include <distributed/share.hpp>
#include <execution/memory_stack.hpp>
#include <execution/stages.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trainer::assembly {

/// A model with its weights, adapter and strategies. Members are declared in the order of their dependence.
struct LoadedModel {
  execution::MemoryStack memory;
  std::shared_ptr<WeightSource> source;  ///< canonical names
  PlacementRequest parts;                ///< what the placement was made from
  PlacementPlan placement;
  execution::LayerDevices devices;
  std::unique_ptr<Model> model;
  Inventory inventory;
  LoraFamily lora_family = adapter::plain_family("this model");  ///< of the model's component
  std::unique_ptr<Adapter> adapter;                              ///< null: all parameters are trained
  std::string adapter_kind;                                      ///< its component, "lora"
  std::vector<std::string> file_layers;                          ///< of the file that the adapter starts from, if any
  std::vector<Linear> adapted;                                   ///< layers that carry the adapter
  std::vector<Parameter*> trained;                               ///< adapter parameters, or all of the model's
};

/// A model as it is stored.
struct StoredModel {
  std::shared_ptr<WeightSource> weights;
  std::string config;      ///< text of config.json, or ""
  bool canonical = false;  ///< the names of `weights` are the component's canonical ones
};

/// What is loaded, beside the components of the recipe.
struct ModelSpec {
  std::function<StoredModel()> open;  ///< called by every `load`
  int64_t micro_batches = 1;          ///< of a step
  uint64_t seed = 0;                  ///< of the adapter's first values and of Weights::random
  /// The layers that carry the adapter; empty: those that the adapter targets.
  std::function<std::vector<Linear>(Model& model, const Inventory& inventory)> targets{};
};
/// Of the recipe's model, for a process with this share of every step. Borrows `components`.
ModelSpec model_spec(Components& components, const distributed::Share& share);

struct LoadOptions {
  Weights weights = Weights::file;
  const Placement* placement = nullptr;   ///< null: Weights::none, placed nowhere: only what the model is and takes
  std::function<void()> before_weight{};  ///< called before each weight that is read; what it throws ends the loading
  bool trained = true;                    ///< false: frozen and without adapter, to draw samples
  const Cut* cut = nullptr;               ///< null: all blocks
  bool expanded = false;                  ///< weights are what packing makes of them, held densely; nothing else acts
};

/// Everything on the first device, one micro-batch after the other.
class OneDevice final : public Placement {
 public:
  [[nodiscard]] PlacementPlan plan(const PlacementRequest& request) const override;
};

/// Where the devices are not open, everything is on dry devices, whatever weights are asked for.
class ModelLoader {
 public:
  ModelLoader(Components& components, ModelSpec spec) : components_(components), spec_(std::move(spec)) {}

  /// Headers, cut, placement, weights, adapter, residency, in this order. Throws Error and PluginError.
  LoadedModel load(execution::MemoryStack memory, const LoadOptions& options);

 private:
  [[nodiscard]] bool is_dry(const LoadOptions& options) const;
  /// Returns the text of config.json.
  std::string open_source(LoadedModel& loaded, const LoadOptions& options);
  std::unique_ptr<Model> create(const LoadedModel& loaded, const std::string& config, SourceBuilder& builder);
  /// From headers alone.
  [[nodiscard]] BuildOptions build_options(const LoadedModel& loaded, const LoadOptions& options) const;
  /// Builds the model once more, each layer on the device where it is placed.
  void read_weights(LoadedModel& loaded, const std::string& config, BuildOptions build, const LoadOptions& options);
  /// Gives `loaded` the recipe's adapter, if there is one, not attached.
  void make_adapter(LoadedModel& loaded) const;
  std::vector<Linear> adapted_layers(const LoadedModel& loaded) const;
  void cut(LoadedModel& loaded, const Cut& cut) const;
  void place(LoadedModel& loaded, const LoadOptions& options) const;
  void attach_adapter(LoadedModel& loaded, const LoadOptions& options) const;
  Components& components_;
  ModelSpec spec_;
};

}  // namespace trainer::assembly
