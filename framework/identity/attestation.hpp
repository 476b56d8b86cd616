/// @file Attestations: notes in the user's configuration folder that plugins of others, in a combination, were proven
/// to train what the plain run trains. Keyed by the plugins' libraries and manifests (which hold defaults, tolerances
/// and candidates) and by this program's fingerprint: a rebuilt plugin, a changed manifest or another LibTorch has to
/// be proven again. A plugin that failed `trainer plugins check` is noted too, and in no combination attested until it
/// passes: a proof of one recipe shows less. Plugins that come with the program are proven by its own tests.
#pragma once

#include <planner/budget_plan.hpp>
#include <plugin/loader.hpp>
#include <recipe/recipe.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trainer::identity {

/// Plugins of others, in any order.
using Strangers = std::vector<plugin::Manifest>;

/// The components of a recipe that train (model, adapter, objective, memory strategies, placement) and did not come
/// with the program; with a plan for memory.budget, the strategies that it chose.
Strangers strangers_of(const recipe::Recipe& recipe, const plugin::Loader& loader,
                       const std::optional<planner::BudgetPlan>& plan);

/// Notes what was proven, in words; returns the file. Throws Error (io, unavailable without a configuration folder).
std::filesystem::path attest(const Strangers& strangers, const std::string& proven);
/// Takes an earlier note back.
void withdraw(const Strangers& strangers);
/// Notes that `trainer plugins check` found one wrong, or with `failed` false that it no longer does. Throws as
/// `attest`.
void note_check(const plugin::Manifest& stranger, bool failed);
/// Those of them that failed it, as "memory swap"; sorted.
std::vector<std::string> failed_checks(const Strangers& strangers);
/// Whether exactly these together are noted for this program and none failed its check; true for none.
bool attested(const Strangers& strangers);

/// For `run`: one sentence that says what is not proven and how to prove it, or "".
std::string attestation_warning(const Strangers& strangers, const std::string& recipe);

/// "memory swap 0.1.0 (library 0123..., manifest 4567...)", for the run's records.
std::vector<std::string> describe(const Strangers& strangers);

/// What a proof is about: the keys of the recipe that decide what is computed, this program and its LibTorch, the
/// plugins of others, the devices, and what memory.budget led to. Text by part.
std::map<std::string, std::string> proof_subject(const recipe::Recipe& recipe, const Strangers& strangers,
                                                 const std::optional<planner::BudgetPlan>& plan);

}  // namespace trainer::identity
