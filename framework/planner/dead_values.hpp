/// @file Which heavy operations a recompute need not run, known before any value exists: a run of the block on shapes
/// alone shows which values its backward keeps, and what these are made from.
#pragma once

#include <trainer/sdk/recompute.hpp>

#include <set>
#include <string>
#include <vector>

namespace trainer::planner {

/// The heavy calls of one forward with gradients on, and everything that flows between them.
class ValueTrace {
 public:
  /// Runs `block` forward once on `flow` (meta tensors). Throws what the block throws.
  ValueTrace(Block& block, const Flow& flow);

  /// Of `calls`, the heavy calls of the block in order, the positions of those whose value the recompute's backward
  /// does not read, not even through others; `kept` are positions that are not run again, and are not among them.
  ///
  /// Never more than what the engine finds by trial (framework/sdk): a value counts as read when its memory outlives
  /// the forward, or when any operation makes one that does from it. None when these calls are not those of the trace.
  [[nodiscard]] std::set<int64_t> dead(const std::vector<HeavyOp>& calls, const std::set<int64_t>& kept) const;
  /// Their floating-point operations.
  [[nodiscard]] double dead_flops(const std::vector<HeavyOp>& calls, const std::set<int64_t>& kept) const;

 private:
  using Storage = std::size_t;  ///< number of a storage
  /// One operator as the dispatcher ran it, those that it calls inside before it.
  struct Event {
    std::string name;
    std::vector<Storage> inputs, outputs;
    double flops = 0;       ///< of its own, besides those of what it calls
    bool floating = true;   ///< all outputs are floating-point tensors
    std::size_t first = 0;  ///< the events from here to its own ran inside it
  };
  class Recorder;
  /// For every event the heavy call that it belongs to, or -1; empty when the calls do not fit.
  [[nodiscard]] std::vector<int64_t> positions_of(const std::vector<HeavyOp>& calls) const;

  std::vector<Event> events_;
  std::set<Storage> kept_for_backward_;
};

}  // namespace trainer::planner
