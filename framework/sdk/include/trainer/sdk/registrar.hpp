/// @file How a plugin offers its components. Valid during `init` only; names are unique per kind.
#pragma once

#include <trainer/sdk/adapter.hpp>
#include <trainer/sdk/encoders.hpp>
#include <trainer/sdk/lora_names.hpp>
#include <trainer/sdk/memory.hpp>
#include <trainer/sdk/objective.hpp>
#include <trainer/sdk/placement.hpp>

namespace trainer {

struct ModelComponent {
  std::string name;
  std::unique_ptr<Model> (*create)(const ModelContext& context) = nullptr;
  /// Presents a file's tensors under the model's canonical names, whatever the layout; null: names are canonical.
  std::shared_ptr<WeightSource> (*map_weights)(std::shared_ptr<WeightSource> file) = nullptr;
  /// Null: `trainer plugins check` needs a folder of weights.
  Miniature (*miniature)() = nullptr;
  /// The LoRA files of this family; null: one format, with canonical names and no prefix.
  LoraFamily (*lora_family)() = nullptr;
};

template <typename Interface, typename Context>
struct Component {
  std::string name;
  std::unique_ptr<Interface> (*create)(const Context& context) = nullptr;
};
using TextEncoderComponent = Component<TextEncoder, EncoderContext>;
using AutoencoderComponent = Component<Autoencoder, EncoderContext>;
using ObjectiveComponent = Component<Objective, Options>;
using AdapterComponent = Component<Adapter, Options>;
using MemoryComponent = Component<MemoryStrategy, Options>;
using PlacementComponent = Component<Placement, Options>;

class TRAINER_API Registrar {
 public:
  virtual ~Registrar();
  virtual void add(ModelComponent component) = 0;
  virtual void add(TextEncoderComponent component) = 0;
  virtual void add(AutoencoderComponent component) = 0;
  virtual void add(ObjectiveComponent component) = 0;
  virtual void add(AdapterComponent component) = 0;
  virtual void add(MemoryComponent component) = 0;
  virtual void add(PlacementComponent component) = 0;
};

}  // namespace trainer
