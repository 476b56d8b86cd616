/// @file What the planner chooses from, and memory strategies as it chose them: for every block of the chain one of
/// several that recompute.
#pragma once

#include <execution/memory_stack.hpp>
#include <planner/budget_plan.hpp>
#include <plugin/loader.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trainer::assembly {

/// The name of the strategy that recomputes as a plan says.
inline constexpr auto kBudget = "memory.budget";

/// A strategy made with the options of a `[[candidate]]`.
struct CandidateStrategy {
  std::string name;      ///< of the plugin
  std::string label;     ///< name and options: `selective_checkpointing save = ["attention"]`
  std::string settings;  ///< identity of its options
  std::unique_ptr<MemoryStrategy> strategy;
};

/// What the plugins at hand offer to the planner.
struct Candidates {
  std::vector<CandidateStrategy> recompute, formats;
};
/// Opens the memory plugins that declare candidates and makes each once. Throws PluginError when one offers something
/// else than either a recompute policy or a weight format: the planner cannot count it.
Candidates make_candidates(plugin::Loader& loader);
/// Whether two strategies may be in one run.
bool compatible(const CandidateStrategy& a, const CandidateStrategy& b);

/// Way 0 is the plain run, way k what candidate k - 1 says. A setting without effect is no error here: the planner
/// made it, not the user.
class PlannedRecompute final : public MemoryStrategy, public execution::WholeModelPolicy {
 public:
  /// Every candidate offers a recompute policy and nothing else. All blocks begin with way 0.
  explicit PlannedRecompute(std::vector<CandidateStrategy> candidates) : candidates_(std::move(candidates)) {}
  /// One way for every block, in order of the chain: while a plan is searched for.
  void set(std::vector<std::size_t> ways) { ways_ = std::move(ways); }
  /// The ways of a plan, by the names of its blocks; `choose` then throws Error (bad_input) for any other block. Throws
  /// as `way`.
  void set(const planner::BudgetPlan& plan);
  /// What `way` means at a site.
  CheckpointOptions options(std::size_t way, const Site& site);
  /// "none", or the candidate's label.
  [[nodiscard]] std::string label(std::size_t way) const { return way == 0 ? "none" : candidates_[way - 1].label; }
  /// The way with this label; throws Error (bad_input) when there is none.
  [[nodiscard]] std::size_t way(const std::string& label) const;
  [[nodiscard]] std::size_t ways() const { return candidates_.size() + 1; }

  RecomputePolicy* recompute_policy() override { return this; }
  CheckpointOptions choose(const Site& site) override;

 private:
  std::vector<CandidateStrategy> candidates_;
  std::vector<std::size_t> ways_;
  std::map<std::string, std::size_t> by_block_;  ///< of a plan; empty without one
};

}  // namespace trainer::assembly
