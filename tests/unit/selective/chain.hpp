/// @file Blocks for tests of what a recompute keeps and leaves out: a chain of attention blocks with LoRA, and single
/// blocks made of a function.
#pragma once

#include <save_list.hpp>
#include <toy.hpp>

namespace trainer::test {

struct ChainOptions {
  at::ScalarType dtype = at::kFloat;
  bool trained_modulation = false;  ///< shared scale, shift and gate need a gradient
  int64_t blocks = 4, rows = 12, width = 32;
  at::Device device = at::kCPU;
};

/// Blocks "block.I" of type "toy". Their heavy calls, in order: frozen_linear#0, mm#0, addmm#0 (q, k, v with LoRA), the
/// attention, frozen_linear#1 (its projection), frozen_linear#2 (up), frozen_linear#3, mm#1, addmm#1 (down with LoRA).
/// The last linear is gated by the modulation.
class Chain {
 public:
  static constexpr const char* kAttention = "_scaled_dot_product_flash_attention_for_cpu";
  explicit Chain(const ChainOptions& options = {});
  at::Tensor loss(const BlockRun& how, RecomputePolicy* policy = nullptr);
  /// The loss and the gradients of all that is trained; undefined where there is none.
  std::vector<at::Tensor> step(const BlockRun& how, RecomputePolicy* policy = nullptr);
  /// Gradients, taken and cleared.
  std::vector<at::Tensor> take_grads();
  std::vector<Parameter*> trained();
  std::function<void()> enter = [] {};  ///< called before the last linear of every run of a block

 private:
  std::vector<at::Tensor> run(const Flow& flow, std::size_t index);
  ChainOptions options_;
  ParameterPtr modulation_;
  std::vector<Linear> qkv_, projection_, up_, down_;
  std::vector<std::unique_ptr<LambdaBlock>> blocks_;
};

/// One block of a function of its flow and its parameters.
class Single {
 public:
  explicit Single(Body body, const std::string& name = "b") : block(name, std::move(body)) {}
  /// Runs the block on `carried` and, when `how` recomputes, the recompute: the gradients of its parameters for a loss
  /// that weights the outputs `used` (all, when empty) by fixed random numbers.
  std::vector<at::Tensor> step(const BlockRun& how, const std::vector<std::size_t>& used = {});
  LambdaBlock block;
  std::vector<at::Tensor> carried;
};

/// Recomputed with these kept outputs.
BlockRun keeping(SavePolicy& save, RecomputeState* sites = nullptr);
/// Recomputed without what nothing reads.
BlockRun eliding(RecomputeState& sites);

}  // namespace trainer::test
