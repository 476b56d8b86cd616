/// @file What the planner chose for `memory.budget`: the plan as it is printed, and as plan.json of a run, so that a
/// resume uses the same one.
#pragma once

#include <planner/block_cost.hpp>
#include <planner/budget.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainer::planner {

struct PlannedBlock {
  std::string name, type;
  std::string way;              ///< "none" or a candidate's label
  int64_t kept = 0;             ///< bytes from its forward to its backward
  double recomputed_flops = 0;  ///< heavy operations, elided ones left out
  bool operator==(const PlannedBlock&) const = default;
};

struct BudgetPlan {
  int64_t budget = 0, peak = 0;  ///< bytes; `peak` is predicted for the training step
  std::string format;            ///< what packs the weights: "none" or a candidate's label
  std::vector<PlannedBlock> blocks;
  double flops = 0;  ///< of a micro-batch without recomputation
  double recomputed_flops = 0;
  double expansion_flops = 0;  ///< what expanding packed weights is worth (planner/chain_cost.hpp)
  int64_t work = 0;            ///< all that a micro-batch does beyond the plain run with weights as they are
  int64_t quantum = 1;         ///< kept bytes were rounded up to its multiples in the search; 1: it was exact
  bool operator==(const BudgetPlan&) const = default;
};

/// The plugin of a candidate's label (`selective_checkpointing save = ["attention"]`); "none" stays.
inline std::string strategy_of(const std::string& label) { return label.substr(0, label.find(' ')); }

/// A table for the user, blocks that follow each other and are run alike in one line.
std::string describe(const BudgetPlan& plan);
std::string to_json(const BudgetPlan& plan);
/// Throws Error (bad_input) naming `file` when the text is no plan.
BudgetPlan parse_plan(const std::string& text, const std::string& file);
/// Whether two plans run every block alike, on weights held alike.
bool same_ways(const BudgetPlan& a, const BudgetPlan& b);
/// Throws Error (bad_input) naming `file` unless the plan is of exactly these blocks.
void require_blocks(const BudgetPlan& plan, const std::vector<std::string>& names, const std::string& file);

/// One row for each block type and each way of running it that occurs: operations kept, bytes kept, FLOPs recomputed,
/// and time by FLOPs in relation to the plain run, a block.
struct WayRow {
  std::string type, way;
  int64_t blocks = 0;
  planner::BlockCost cost;
};
std::string table(const std::vector<WayRow>& rows);

}  // namespace trainer::planner
