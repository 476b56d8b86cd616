/// @file Chooses for every block of a chain one way to run it: the cheapest choice whose peak fits a budget. Exact, in
/// bytes, by dynamic programming over the blocks. Free of LibTorch.
///
/// The model of a step: before block i's forward the kept bytes of the blocks before it are there; after the last
/// forward all of them; backward frees them from the last block on. Everything else (weights, adapter, gradients,
/// optimiser, batch, what lies outside the blocks) is `fixed`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace trainer::planner {

/// What one way to run a block costs.
struct Way {
  int64_t kept = 0;           ///< bytes there from the end of its forward until its backward
  int64_t forward_peak = 0;   ///< at most during its forward, beyond what was there before it
  int64_t backward_peak = 0;  ///< at most during its backward, beyond what was there before its forward
  int64_t work = 0;           ///< work besides that of the plain run (recomputation)
  bool operator==(const Way&) const = default;
};

struct Chain {
  int64_t fixed = 0;      ///< bytes throughout the step
  int64_t tail_peak = 0;  ///< at most between the last forward and the first backward, beyond all kept bytes
  std::vector<std::vector<Way>> blocks;  ///< the ways of every block in order of execution; none is empty
};

struct Choices {
  std::vector<std::size_t> ways;  ///< for every block
  int64_t kept = 0, peak = 0;     ///< bytes; `peak` with `fixed`
  int64_t work = 0;
  int64_t quantum = 1;  ///< kept bytes were rounded up to its multiples in the search; 1: it was exact
};

/// Number of states per block up to which the search is exact to the byte. Beyond it, kept bytes are rounded up to a
/// multiple of a quantum that depends on the chain alone: a plan then never needs more than was counted, and more
/// budget is never slower.
constexpr std::size_t kExactStates = 1 << 14;

/// The choice with the least work whose peak is at most `budget`; nullopt when none fits. Among equal ones fewer kept
/// bytes, then earlier ways; within blocks that have the same ways, those that keep most come last, where their memory
/// is released first.
std::optional<Choices> cheapest(const Chain& chain, int64_t budget, std::size_t exact_states = kExactStates);

/// The smallest budget for which `cheapest` finds a plan.
int64_t smallest_budget(const Chain& chain, std::size_t exact_states = kExactStates);

/// Kept bytes, peak and work of given ways.
Choices evaluate(const Chain& chain, std::vector<std::size_t> ways);

}  // namespace trainer::planner
