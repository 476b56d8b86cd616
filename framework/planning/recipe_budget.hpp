/// @file `memory.budget` of a recipe: candidates from the plugins' manifests, one weight format after the other, and
/// what to say when nothing fits.
#pragma once

#include <assembly/assemble.hpp>
#include <data/buckets.hpp>
#include <execution/batch_source.hpp>
#include <planning/dry_run.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trainer::planning {

/// Shapes of a micro-batch of pictures of size `largest`.
BatchShape batch_shape(execution::BatchSource& batches, const data::Bucket& largest, int64_t factor);

/// The same before anything is encoded, from the shapes that the model declares for its inputs: texts are as long as
/// the encoder takes. nullopt where an input has no declared shape: it is known when the cache is made.
std::optional<BatchShape> foretold_shape(assembly::Assembly& assembly, const data::Bucket& largest, int64_t factor);
/// The largest size that pictures of the recipe can get, 0 x 0 without pictures. Every forecast takes it, whatever
/// sizes the pictures of today have: the numbers are the same before and after they are looked at.
enum class Of { trained, held_out };
data::Bucket largest_of(const recipe::Recipe& recipe, int64_t factor, Of of = Of::trained);

/// Pixels along a side of a latent cell. While the autoencoder's files are missing, the usual number, said in `notes`.
/// 1 for recipes without pictures.
int64_t foretold_factor(assembly::Assembly& assembly, std::string& notes);

/// After a dry run: settings of the recipe's memory strategies that had no effect are errors, as they are after the
/// first step of a run. Names of attention kernels are left to the run where another device chooses them.
void require_effect(const assembly::Assembly& assembly, const execution::MemoryStack& memory);

/// Plans the recipe's training for micro-batches of this shape: of all ways to run the blocks what does the least work.
/// Weights stay as they are where that fits, since packing changes what is trained; else the format with the least
/// work. `format`: only plans with this weight format (a run that goes on must keep it); empty: any. Throws Error
/// (bad_recipe) with the smallest budget that works and what would need less memory when none fits.
planner::BudgetPlan plan_budget(assembly::Assembly& assembly, const BatchShape& batch, const std::string& format = "");

/// The weight format, as plan_budget takes it, that a run calls `name` (MemoryStack::format_identity); "none" for the
/// empty name, and empty for one that no plugin offers to the planner.
std::string planned_format(assembly::Assembly& assembly, const std::string& name);

/// The format of the first of these checkpoints that looks whole, which a run that goes on keeps, as plan_budget takes
/// it; empty without one.
std::string format_of_checkpoint(assembly::Assembly& assembly, const std::vector<std::filesystem::path>& newest_first);

/// With memory.budget: plans it for an assembly on shapes alone, and puts the plan to use. Throws as
/// plan_budget, and Error (unavailable) when no batch is known before the cache is made.
std::optional<planner::BudgetPlan> choose_strategies(assembly::Assembly& assembly);

/// How the blocks of the recipe's model are run with its strategies, for `check`.
std::vector<planner::WayRow> strategy_rows(assembly::Assembly& assembly, const BatchShape& batch);

/// The rows of `explain memory.NAME`: every way in which the planner may choose the strategy, and the plain run.
std::vector<planner::WayRow> candidate_rows(assembly::Assembly& assembly, const BatchShape& batch,
                                            const std::string& name);

/// The objects of a dry step; `parts` borrows from the others.
struct DryModel {
  assembly::LoadedModel loaded;
  std::unique_ptr<Objective> objective;
  BatchShape batch;
  at::Device data;  ///< as in DryParts
  [[nodiscard]] DryParts parts(const recipe::Recipe& recipe) const;
};
DryModel dry_model(assembly::Assembly& assembly, execution::MemoryStack memory, const BatchShape& batch);

}  // namespace trainer::planning
