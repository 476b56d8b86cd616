/// @file From a recipe to the objects of a run: plugins opened, components made, weights loaded.
#pragma once

#include <adapter/adapter_file.hpp>
#include <distributed/environment.hpp>
#include <distributed/share.hpp>
#include <plugin/loader.hpp>
#include <recipe/recipe.hpp>
#include <text/sdk_tokenizer.hpp>
#include <execution/memory_stack.hpp>
#include <assembly/model_builder.hpp>
#include <assembly/request.hpp>
#include <execution/stages.hpp>
#include <planner/budget_plan.hpp>
#include <trainer/sdk/dry_devices.hpp>
#include <trainer/sdk/encoders.hpp>

#include <functional>
#include <memory>
#include <optional>
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

/// How much of a model is needed.
enum class ModelUse {
  outline,  ///< headers only, and placed nowhere: what the model is and takes
  inspect,  ///< headers only: names, shapes, adapter targets, placement
  sample,   ///< frozen, no adapter
  train,    ///< adapter attached, or all parameters trained
  dry,      ///< as train, on dry devices: shapes only, no weight is read
};

/// How a cut model is to run.
struct CutUse {
  std::vector<std::string> strategies;  ///< those of Assembly::strategies() that act
  bool placed = false;                  ///< as the recipe's placement says; otherwise on the first device
  bool random_weights = false;          ///< keyed random numbers in the shapes of the file, of which nothing is read
  bool packing_only = false;            ///< weights are packed, and nothing else that the strategies do is done
  bool expanded = false;                ///< nothing acts, but weights are what the packing says they are, held densely
};

/// The recipe's world: its components, made on demand. One per process; where a second is made for a while, as to plan
/// a changed recipe, the first runs nothing on dry devices until that one is gone (DryDevices).
class Assembly {
 public:
  /// What it is for. `prove` needs neither data nor encoders: their files may be missing until they are asked for.
  /// `plan` neither, reads headers only, puts everything on dry devices and needs no GPU.
  enum class Use { run, prove, plan };
  /// Loads the recipe and the manifests, opens devices; opens no plugin yet. `place`: of this process among those that
  /// train together; it decides its devices and its share of every step. Throws Error (bad_recipe) when the batch
  /// cannot be shared out among so many.
  explicit Assembly(const Request& request, Use use = Use::run, const distributed::Place& place = {});

  [[nodiscard]] const recipe::Recipe& recipe() const { return recipe_; }
  [[nodiscard]] const std::vector<at::Device>& devices() const { return devices_; }
  /// All that hold something of a run: the placement's devices, those of encoders, and the host. The i-th is "meta:i"
  /// in dry runs.
  [[nodiscard]] const std::vector<at::Device>& memories() const { return memories_; }
  /// The dry device that stands for one of them.
  [[nodiscard]] at::Device dry(at::Device device) const;
  plugin::Loader& loader() { return loader_; }
  /// What this process does of every step.
  [[nodiscard]] const distributed::Share& share() const { return share_; }

  /// The device of an encoder: its own, or the first of the placement.
  [[nodiscard]] at::Device device_of(const recipe::Component& encoder) const;
  std::unique_ptr<TextEncoder> text_encoder();
  /// On shapes alone, for texts as long as it takes.
  struct DryEncoder {
    std::unique_ptr<TextEncoder> encoder;
    std::function<bool()> length_guessed;  ///< whether it asked for tokens though no option says how many
  };
  DryEncoder dry_text_encoder();
  /// The option of the text encoder that bounds a text, by the name that our encoders have for it.
  [[nodiscard]] std::optional<int64_t> longest_text() const;
  std::unique_ptr<Autoencoder> autoencoder();
  /// Pixels along a side of the autoencoder's latent cells; its weights are not read where it can be made on shapes.
  int64_t spatial_factor();
  /// What the encoders read, for cache keys; opened without loading data. Null for an encoder that reads nothing.
  std::shared_ptr<WeightSource> text_encoder_weights();
  std::shared_ptr<WeightSource> autoencoder_weights();
  std::shared_ptr<text::SdkTokenizer> tokenizer();

  std::unique_ptr<Objective> objective();
  /// The recipe's strategies, or those of the plan in use.
  execution::MemoryStack memory_stack();
  /// The model on the devices that the placement gives its parts, with the recipe's strategies; with `memory.budget`,
  /// those of the plan in use. Throws Error (bad_recipe) when the placement finds no devices.
  LoadedModel load_model(ModelUse use);
  LoadedModel load_model(ModelUse use, execution::MemoryStack memory);
  /// `call` comes before each weight that is read from now on; what it throws ends the loading.
  void before_weights(std::function<void()> call) { before_weight_ = std::move(call); }
  /// From now on models are loaded as the plan says. Throws Error (bad_input) when it names what no plugin offers.
  void use_plan(const planner::BudgetPlan& plan) { plan_ = plan; }
  /// The plan in use, if there is one.
  [[nodiscard]] const std::optional<planner::BudgetPlan>& plan() const { return plan_; }
  /// The model cut to the first and the last block of each type (of those that the adapter targets; with a plan, of
  /// each type and way), ready to train with some of the strategies; nothing of the other blocks is read.
  LoadedModel load_cut_model(const CutUse& use);
  /// The recipe's memory strategies; with a plan, its weight format and "memory.budget".
  [[nodiscard]] std::vector<std::string> strategies() const;
  /// Those of them that pack weights.
  std::vector<std::string> packing_strategies();
  /// What the packing strategy of this name declares.
  [[nodiscard]] recipe::Tolerance tolerance_of(const std::string& strategy) const;

 private:
  std::unique_ptr<MemoryStrategy> memory_strategy(const recipe::Component& component);
  execution::MemoryStack memory_stack(const std::vector<std::string>& names);
  execution::MemoryStack planned_stack(const planner::BudgetPlan& plan, const std::vector<std::string>& names);
  /// For proofs: `plan` is that of the blocks which are left.
  execution::MemoryStack cut_stack(const CutUse& use, const std::optional<planner::BudgetPlan>& plan);
  EncoderContext encoder_context(const recipe::Component& component, std::shared_ptr<WeightSource> files,
                                 bool dry) const;
  std::unique_ptr<TextEncoder> create_text_encoder(const EncoderContext& context);
  std::unique_ptr<Autoencoder> create_autoencoder(bool on_shapes);
  std::unique_ptr<Model> create_model(const LoadedModel& loaded, const std::string& config, SourceBuilder& builder);
  /// All that the recipe names.
  [[nodiscard]] std::vector<at::Device> named_devices() const;
  void note_memories();
  PlacementPlan plan_placement(const PlacementRequest& request);
  [[nodiscard]] PlacementPlan on_dry_devices(PlacementPlan plan) const;
  /// Gives `loaded` the recipe's adapter for a model with these layers, not attached; with the values of its file where
  /// it has one.
  void make_adapter(LoadedModel& loaded, std::span<const Linear> layers);
  void attach_adapter(LoadedModel& loaded, ModelUse use);
  [[nodiscard]] bool on_shapes(ModelUse use) const;

  Use use_;
  recipe::Recipe recipe_;
  plugin::Loader loader_;
  distributed::Place place_;
  distributed::Share share_;
  std::vector<at::Device> devices_, memories_;
  std::shared_ptr<const DryDevices> dry_devices_;  ///< which of the memories are CUDA's
  std::optional<planner::BudgetPlan> plan_;
  std::function<void()> before_weight_;
};

/// The LoRA files of a model component.
LoraFamily lora_family(const ModelComponent& component);

/// "fp32" or "bf16".
at::ScalarType dtype_of(const std::string& name);

}  // namespace trainer::assembly
