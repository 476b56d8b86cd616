/// @file What `trainer prove` found, and `proof.json` in the folder of the run, where it is stored with what it is
/// about: `run` finds it there and notes in run.json whether it speaks of the same combination.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <recipe/recipe.hpp>
#include <identity/attestation.hpp>
#include <planner/budget_plan.hpp>
#include <prove/difference.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trainer::prove {

/// One comparison of the table.
struct Comparison {
  std::string run, against, result{};
  bool passed = false;
  bool judged = true;                      ///< false: it could not be made, which is no fault of the strategies
  std::optional<prove::Spot> largest{};    ///< difference, where there is one
  std::optional<prove::Distance> apart{};  ///< from the run with dense weights
  double tolerance = 0;                    ///< for `apart`
  int64_t peak_bytes = 0;                  ///< weights and steps on the first device; 0: it did not end
  std::string heavy{};                     ///< Trajectory::heavy_operations
};

/// What was proven and how; filled in as the runs go.
struct Proof {
  std::string model, blocks, inputs, trained, notes;
  int64_t steps = 0, weight_bytes = 0;
  std::map<std::string, RecomputeReport> recompute;
  std::vector<Comparison> lines;
  [[nodiscard]] bool passed() const;
  /// Every comparison could be made.
  [[nodiscard]] bool complete() const;
  /// "bit-equal", "bit-equal but for packed weights, which are within their tolerance", "differs", or that a part
  /// could not be compared.
  [[nodiscard]] std::string verdict() const;
};
nlohmann::ordered_json to_json(const Proof& proof);

/// What a proof is about: the keys of the recipe that decide what is computed, this program and its LibTorch, the
/// plugins of others, the devices, and what memory.budget led to. Text by part.
std::map<std::string, std::string> proof_subject(const recipe::Recipe& recipe, const identity::Strangers& strangers,
                                                 const std::optional<planner::BudgetPlan>& plan);

/// Writes `folder`/proof.json, making the folder. Throws Error (io).
std::filesystem::path store_proof(const std::filesystem::path& folder, const Proof& proof,
                                  const std::map<std::string, std::string>& subject);

/// For run.json: {"found": "none"}, or "matching" or "other" (with the parts that differ) and the verdict. A damaged
/// file is none.
nlohmann::ordered_json describe_stored_proof(const std::filesystem::path& folder,
                                             const std::map<std::string, std::string>& subject);

}  // namespace trainer::prove
