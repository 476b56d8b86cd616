/// @file Where the blocks stand that a micro-batch runs: in the whole model, and among those that take part in
/// training.
#pragma once

#include <trainer/sdk/memory.hpp>

#include <vector>

namespace trainer::execution {

/// A block takes part when the flow runs it (Block::takes_part) and a gradient passes through it: something trained is
/// in it, or before it. Only these keep anything for a backward, so that only these are counted when some of several
/// blocks are chosen.
class Chain {
 public:
  /// `flow`: what the prologue made. Without grad mode no block takes part. The model is borrowed.
  Chain(Model& model, const Flow& flow, int64_t micro_batch);
  [[nodiscard]] Block& block(std::size_t index) const { return *blocks_[index]; }
  /// Among all blocks of the model.
  [[nodiscard]] Site site(std::size_t index) const;
  /// Among those that take part; null for one that does not.
  [[nodiscard]] const Site* part(std::size_t index) const;

 private:
  std::span<Block* const> blocks_;
  int64_t micro_batch_;
  std::vector<Site> parts_;  ///< of every block of the model; without a block where it takes no part
};

}  // namespace trainer::execution
