/// @file One run against the run that it must equal: the one judgement behind `trainer prove`, `trainer plugins check`
/// and the equivalence matrix.
#pragma once

#include <prove/difference.hpp>
#include <recipe/schema.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trainer::prove {

/// A line of a table of comparisons.
struct Row {
  enum Verdict {
    equal,         ///< bit for bit; packed weights also within their tolerance
    refused,       ///< with an error of the recipe (bad_recipe)
    idle,          ///< not run: a strategy of it would have nothing to do
    not_compared,  ///< it could not be made, which is no fault of the strategies
    differs,
    failed,
  };
  std::string setting{};  ///< "toy | fp32 | lora, default targets | 1"; empty for a recipe, which has one setting
  std::string subset{};   ///< "full_checkpointing + fp8_weight_only"
  std::string against{};  ///< "none", or the strategies that pack weights, alone
  Verdict verdict = failed;
  std::string result{};             ///< in words
  std::optional<Spot> largest{};    ///< difference, where bits differ
  std::optional<Distance> apart{};  ///< with packed weights: from what they are compared with
  recipe::Tolerance tolerance{};    ///< what `apart` was held to
  int64_t peak_bytes = 0;           ///< of weights, adapter and steps on the first device; 0: not run
  std::string heavy{};              ///< Trajectory::heavy_operations
  [[nodiscard]] bool passed() const { return verdict == equal || verdict == refused || verdict == idle; }
  [[nodiscard]] std::string text() const;  ///< as a row of a Markdown table
};
/// Head of the Markdown table.
std::string table_head();
/// "a + b"; `none` for no names.
std::string join(const std::vector<std::string>& names, const std::string& none = "none");

/// Runs `call`, which compares; what it throws becomes the verdict of `row`. `may_refuse`: an error of the recipe
/// (bad_recipe) is a refusal, else a failure as any other. `out_of_memory`: called, within the handler, when the device
/// has no room; without it that is a failure.
void judge(Row& row, bool may_refuse, const std::function<void()>& call,
           const std::function<void()>& out_of_memory = {});

/// Notes what a run took.
void measure(Row& row, const Trajectory& run);
/// Bit for bit.
void compare(Row& row, const Trajectory& run, const Trajectory& expected);
/// A run with packed weights against the run on what they say they are, held densely: bit for bit, or where the
/// strategy declares a rounding, within that.
void compare_expanded(Row& row, const Trajectory& run, const Trajectory& expanded, const recipe::Tolerance& tolerance);
/// Notes how far a run with packed weights is from the run with those of the file; returns whether that is within the
/// declared tolerance.
bool is_near_dense(Row& row, const Trajectory& run, const Trajectory& dense, const recipe::Tolerance& tolerance);

}  // namespace trainer::prove
