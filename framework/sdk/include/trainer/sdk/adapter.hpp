/// @file What is trained beside frozen weights: an adapter hangs a trained part on linear layers, writes the parts to a
/// file and reads them again. Training from a file (`adapter.path`), `trainer sample --lora`, `inspect` and `export`
/// all use these functions, for LoRA as for any other adapter.
#pragma once

#include <trainer/sdk/layers.hpp>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trainer {

/// What a file holds of an adapter. The host reads it: names of every format that the model's family knows become
/// canonical, and fused LoRA pairs are split.
struct AdapterFile {
  /// By canonical layer: its tensors by what follows the layer in their names, e.g. "lora_A.weight". On the CPU, in the
  /// stored dtype. A layer of LoRA matrices holds "lora_A.weight" [rank, in], "lora_B.weight" [out, rank] and, as a
  /// number of fp64, "alpha": the update is alpha / rank * B A.
  std::map<std::string, NamedTensors> layers;
  std::map<std::string, std::string> metadata;  ///< of the file, as it stands there
};

/// What an adapter is given with one layer.
struct AttachContext {
  using Init = std::function<at::Tensor(double, double, at::IntArrayRef)>;
  at::Device device = at::kCPU;       ///< of the layer: the part's tensors are made there
  at::ScalarType dtype = at::kFloat;  ///< of `apply`'s x and y, and of the frozen weight's products
  Init uniform;                       ///< (low, high, shape): random fp32 data on `device`, keyed by the layer's name
  Init normal;                        ///< (mean, std, shape): the same from the normal distribution
};

/// Makes the trained part of each targeted linear layer. Its manifest lists the ends of its tensors' names (`tensors`).
class TRAINER_API Adapter {
 public:
  virtual ~Adapter();
  /// The part of one layer: fp32 parameters on `context.device` that require gradients. In a dry run the device is meta
  /// and nothing may be read from a tensor. The part may keep a reference to `state`, which outlives it. Numbers of
  /// `state.frozen` may be read here and in LinearAdapter::apply, not in `export_layer`: a residency may have moved
  /// them.
  [[nodiscard]] virtual std::unique_ptr<LinearAdapter> attach(const LinearState& state,
                                                              const AttachContext& context) const = 0;
  /// From now on `attach` takes its first values from this file. Called before everything else, with tensors of the
  /// kinds that the manifest lists alone. Throws Error (bad_recipe) when an option contradicts the file, or when this
  /// kind of adapter cannot start from a file, which is the default.
  virtual void start_from(AdapterFile file);
  /// Glob patterns chosen by the recipe. Empty: the layers of the file, or else the model's default.
  [[nodiscard]] virtual std::vector<std::string> targets() const = 0;
  /// Tensors of the file for one layer, on the CPU: "<layer>.lora_A.weight", ..., with the ends that the manifest
  /// lists. `start_from` makes the same part of them again.
  [[nodiscard]] virtual NamedTensors export_layer(const LinearState& state) const = 0;
  /// What the file's metadata says beside the host's keys ("format", "software", "step", ...): nothing personal.
  [[nodiscard]] virtual std::map<std::string, std::string> metadata() const { return {}; }
  /// One line, e.g. "LoRA rank 16, alpha 16".
  [[nodiscard]] virtual std::string describe() const = 0;
};

}  // namespace trainer
