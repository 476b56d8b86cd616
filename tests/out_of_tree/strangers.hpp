/// @file What the tests of the stranger's plugins share: the loader of his build folder, and a small chain of blocks
/// with frozen weights.
#pragma once

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <assembly/model_builder.hpp>
#include <execution/keyed_random.hpp>
#include <plugin/loader.hpp>
#include <trainer/sdk/recompute.hpp>

#include <cstdlib>
#include <memory>
#include <string>
#include <support/parity.hpp>
#include <utility>
#include <vector>

namespace trainer::strangers {

inline plugin::Loader& loader() {
  static plugin::Loader instance({{std::getenv("TRAINER_TEST_STRANGERS"), "the stranger's build"}});
  return instance;
}

inline at::Tensor numbers(uint64_t key, at::IntArrayRef shape) {
  return execution::keyed_normal(KeyedRng(1, RngStream::noise, 0, key), shape) * 0.3;
}

inline std::unique_ptr<MemoryStrategy> strategy(const std::string& name, Table options = {}) {
  loader().require("memory", name);
  return loader().registry().memory.at(name).create(Options("memory." + name, std::move(options)));
}

/// Weights of the stranger's toy: `blocks` blocks of width 8.
inline NamedTensors toy_weights(uint64_t blocks) {
  NamedTensors tensors{{"embed.weight", numbers(1, {8, 3})},
                       {"embed.bias", numbers(2, {8})},
                       {"time_embed.weight", numbers(3, {8, 8})},
                       {"modulation.weight", numbers(4, {24, 8})},
                       {"out.weight", numbers(5, {3, 8})}};
  for (uint64_t i = 0; i < blocks; ++i) {
    const std::string block = "blocks." + std::to_string(i);
    tensors[block + ".up.weight"] = numbers(10 * i + 6, {16, 8});
    tensors[block + ".down.weight"] = numbers(10 * i + 7, {8, 16});
    tensors[block + ".scale"] = numbers(10 * i + 8, {8}) + 1;
  }
  return tensors;
}

/// The stranger's toy, frozen; what is differentiated are its inputs, through the prologue's output.
class ToyChain {
 public:
  explicit ToyChain(uint64_t blocks, bool trained = false) : source_(toy_weights(blocks)) {
    assembly::BuildOptions options;
    options.trained = trained;
    builder_ = std::make_unique<assembly::SourceBuilder>(source_, options);
    loader().require("model", "toy");
    const Options none;
    model_ = loader().registry().models.at("toy").create(ModelContext{none, source_, "", *builder_});
  }
  Model& model() { return *model_; }
  const assembly::Inventory& inventory() const { return builder_->inventory(); }
  /// The flow before the blocks, its carried and shared tensors leaves that require grad.
  Flow start() {
    Flow flow = model_->prologue({{"latents", numbers(50, {2, 3, 1, 4, 5})}, {"timestep", numbers(51, {2})}});
    for (auto* list : {&flow.carried, &flow.shared})
      for (at::Tensor& tensor : *list) tensor = tensor.detach().requires_grad_(true);
    return flow;
  }
  /// Runs all blocks, each as `how` says with its own site.
  Flow run(Flow flow, BlockRun how) {
    const auto blocks = model_->blocks();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      how.site = {blocks[i], static_cast<int64_t>(i), static_cast<int64_t>(blocks.size()), 0};
      flow.carried = run_block(*blocks[i], flow, how);
    }
    return flow;
  }
  /// Output, and the gradients of the flow before the blocks.
  std::vector<at::Tensor> step(const BlockRun& how) {
    const Flow flow = start();
    const Flow end = run(flow, how);
    end.carried[0].pow(2).sum().backward();
    return {end.carried[0].detach(), flow.carried[0].grad(), flow.shared[0].grad()};
  }

 private:
  test::MemorySource source_;
  std::unique_ptr<assembly::SourceBuilder> builder_;
  std::unique_ptr<Model> model_;
};

inline bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i) equal = test::same_bits(a[i], b[i]);
  return equal;
}

}  // namespace trainer::strangers
