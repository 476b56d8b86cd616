/// @file Where to cut a chain of blocks into stages, one a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace trainer::split {

struct Weighed {
  double work = 0;    ///< in any unit; never negative
  int64_t bytes = 0;  ///< of its weights
};

struct Chain {
  std::vector<Weighed> blocks;
  Weighed first, last;  ///< prologue and epilogue: they stay with the first and the last block
};

struct Devices {
  std::vector<double> weights;   ///< > 0, one a device: work or bytes are shared in this proportion
  std::vector<int64_t> budgets;  ///< bytes; empty: no limits
};

enum class Balance { compute, memory };

/// The first block of every stage, ascending, beginning with 0; every stage has a block. Minimises the largest share
/// (work or bytes of a stage over its device's weight) within the budgets, exactly; among equal ones the earliest cuts.
/// Nullopt when none satisfies the budgets, or there are fewer blocks than devices.
std::optional<std::vector<std::size_t>> best_cut(const Chain& chain, const Devices& devices, Balance balance);

/// Sums of the stages that `starts` makes.
std::vector<Weighed> stages(const Chain& chain, const std::vector<std::size_t>& starts);

}  // namespace trainer::split
