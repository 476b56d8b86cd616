/// @file What `trainer prove` found, and `proof.json` in the folder of the run, where it is stored with what it is
/// about: `run` finds it there and notes in run.json whether it speaks of the same combination.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <prove/comparison.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trainer::prove {

/// What was proven and how; filled in as the runs go.
struct Proof {
  std::string model, blocks, inputs, trained, notes;
  int64_t steps = 0, weight_bytes = 0;
  std::map<std::string, RecomputeReport> recompute;
  std::vector<Row> lines;
  [[nodiscard]] bool passed() const;
  /// Every comparison could be made.
  [[nodiscard]] bool complete() const;
  /// "bit-equal", "bit-equal but for packed weights, which are within their tolerance", "differs", or that a part
  /// could not be compared.
  [[nodiscard]] std::string verdict() const;
};
nlohmann::ordered_json to_json(const Proof& proof);

/// Writes `folder`/proof.json, making the folder. Throws Error (io).
std::filesystem::path store_proof(const std::filesystem::path& folder, const Proof& proof,
                                  const std::map<std::string, std::string>& subject);

/// For run.json: {"found": "none"}, or "matching" or "other" (with the parts that differ) and the verdict. A damaged
/// file is none.
nlohmann::ordered_json describe_stored_proof(const std::filesystem::path& folder,
                                             const std::map<std::string, std::string>& subject);

}  // namespace trainer::prove
