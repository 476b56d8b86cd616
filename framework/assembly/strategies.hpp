/// @file The memory strategies of a recipe, or those that a plan for memory.budget chose.
#pragma once

#include <assembly/components.hpp>
#include <execution/memory_stack.hpp>
#include <planner/budget_plan.hpp>

#include <optional>
#include <string>
#include <vector>

namespace trainer::assembly {

class Strategies {
 public:
  using Promises = execution::MemoryStack::Promises;

  explicit Strategies(Components& components) : components_(components) {}  ///< borrowed

  /// From now on the strategies are those of the plan.
  void use(const planner::BudgetPlan& plan) { plan_ = plan; }
  /// The plan in use, if there is one.
  [[nodiscard]] const std::optional<planner::BudgetPlan>& plan() const { return plan_; }

  /// The recipe's memory strategies; with a plan, its weight format and "memory.budget".
  [[nodiscard]] std::vector<std::string> names() const;
  /// Those of them that pack weights.
  std::vector<std::string> packing();
  /// What the packing strategy of this name declares.
  [[nodiscard]] recipe::Tolerance tolerance_of(const std::string& strategy) const;

  /// Fresh strategies: all of them, or those of `names`. Throws Error: bad_recipe when they cannot be combined,
  /// bad_input when the plan names what no plugin offers.
  execution::MemoryStack stack();
  execution::MemoryStack stack(const std::vector<std::string>& names, Promises promises = Promises::trusted);

 private:
  execution::MemoryStack planned_stack(const std::vector<std::string>& names, Promises promises);
  Components& components_;
  std::optional<planner::BudgetPlan> plan_;
};

}  // namespace trainer::assembly
