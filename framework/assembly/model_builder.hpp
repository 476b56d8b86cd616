/// @file Turns a weight source into the layers of a model: frozen (dense or packed by a strategy) or trained.
#pragma once

#include <trainer/sdk/memory.hpp>

#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace trainer::assembly {

/// Everything a model was built from, in creation order: what adapters, optimisers and `inspect` go through.
struct Inventory {
  std::vector<Linear> linears;
  std::vector<ParameterPtr> parameters;
  int64_t weight_bytes = 0;     ///< held by frozen weights and parameters
  int64_t parameter_count = 0;  ///< elements of all weights
  int64_t packed_layers = 0;    ///< whose weights a strategy packed
};

struct BuildOptions {
  at::ScalarType dtype = at::kFloat;  ///< compute dtype; frozen weights are kept in it
  at::Device device = at::kCPU;       ///< of the prologue
  /// Device of a layer or parameter by its canonical name; empty: `device` for all. Weights go from the file straight
  /// to it.
  std::function<at::Device(const std::string& name)> device_of{};
  bool trained = false;            ///< weights become fp32 leaves that require grad (full fine-tune)
  bool headers_only = false;       ///< shapes and names only: nothing is read; what is to run needs `materialise`
  WeightFormat* format = nullptr;  ///< of the memory strategies; null: weights stay dense
  /// Called before each weight that is read; what it throws ends the building.
  std::function<void()> before_weight{};
  bool expanded = false;  ///< packed weights are held densely in `dtype` as what they say they are: for proofs
};

/// Throws Error (bad_recipe) when weights are to be trained and packed.
void refuse_packed_training(const BuildOptions& options);

/// Reads tensor by tensor: peak memory is the built model plus one tensor.
class SourceBuilder final : public ModelBuilder {
 public:
  /// Both are borrowed for the builder's life; `source` has canonical names.
  SourceBuilder(WeightSource& source, BuildOptions options);
  Linear linear(const std::string& name, int64_t in, int64_t out, bool bias) override;
  ParameterPtr parameter(const std::string& name, const std::vector<int64_t>& shape) override;
  at::ScalarType dtype() const override { return options_.dtype; }
  at::Device device() const override { return options_.device; }
  /// What was built so far.
  [[nodiscard]] const Inventory& inventory() const { return inventory_; }
  /// Reads what a headers-only build left out, for these of its layers and parameters alone: a part of a model runs
  /// without the rest being read.
  void materialise(std::span<const Linear> linears, std::span<const ParameterPtr> parameters);

 private:
  /// Remembers what is made while the model spares it from training.
  void note_spared(const std::string& name) {
    if (spared()) spared_names_.insert(name);
  }
  [[nodiscard]] bool trains(const std::string& name) const { return options_.trained && !spared_names_.contains(name); }
  void require_shape(const std::string& name, const std::vector<int64_t>& shape) const;
  /// A packed weight without its scales would be another weight: throws Error (bad_input, MODEL_SCALES).
  void refuse_scaled(const std::string& name) const;
  at::Tensor load(const std::string& name, const std::vector<int64_t>& shape, at::Device device);
  [[nodiscard]] at::Device device_of(const std::string& name) const {
    return options_.device_of ? options_.device_of(name) : options_.device;
  }
  /// The tensor of `name` as the model holds it, counted in the inventory's bytes.
  at::Tensor read(const std::string& name, at::Device device);
  void fill(LinearState& state);
  WeightSource& source_;
  BuildOptions options_;
  Inventory inventory_;
  std::set<std::string> spared_names_;
};

/// All trained tensors of an inventory, each once: layers in order, then other parameters.
std::vector<Parameter*> trained_parameters(const Inventory& inventory);

}  // namespace trainer::assembly
