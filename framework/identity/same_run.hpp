/// @file Whether a checkpoint may be gone on from: same run id, same recipe where it matters, same content.
#pragma once

#include <checkpoint/earlier.hpp>
#include <checkpoint/store.hpp>
#include <checkpoint/train_state.hpp>
#include <plugin/manifest.hpp>
#include <recipe/recipe.hpp>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trainer::identity {

/// The id of the run that began this folder, or a new one that is written down in its run.json. Throws Error
/// (bad_input) for a damaged one.
std::string run_id_of(const std::filesystem::path& folder);

/// Whether --resume names a checkpoint folder, instead of "auto", "never" or "required".
bool names_checkpoint(const std::string& resume);

/// Looks at a folder that --resume names before anything is made. Throws Error (not_found) when it is no checkpoint.
void require_named_checkpoint(const std::string& resume);

/// A warning when lora/ or model/ of a run hold a result of a later step than its newest whole checkpoint, as after
/// newer ones were deleted or damaged; else "".
std::string later_result(const std::filesystem::path& folder, int64_t step_of_checkpoint);

/// Whether a folder with checkpoints of `steps` allows what --resume asks. Throws Error (locked, not_found).
void require_resumable(const std::string& resume, const std::filesystem::path& folder,
                       const std::vector<int64_t>& steps);

/// Throws Error (bad_recipe) listing the keys in which the recipe differs from that of `what`, see recipe_before,
/// unless they change nothing of what is trained. With `resume_with` "recipe" those of a checkpoint are a warning, but
/// for keys that decide which tensors it holds.
void require_same_recipe(const recipe::Recipe& before, const recipe::Recipe& now, const std::filesystem::path& folder,
                         const std::string& what, const std::string& resume_with = {});

/// What --resume-with checkpoint changes: overrides (see Request::overrides) that give the recipe the values of the
/// checkpoint that --resume `resume` goes on from, where others would train something else. Empty without a checkpoint.
std::vector<std::string> overrides_to_checkpoint(const recipe::Recipe& now, const plugin::Found& found,
                                                 const std::string& resume = "auto");

/// In words, for a warning.
std::string gone_on_as_checkpoint(const std::vector<std::string>& overrides);

/// What earlier versions recorded for a fingerprint, by its key and its value now.
using EarlierForm = std::function<std::string(const std::string& key, const std::string& now)>;
/// Throws Error (bad_recipe) when data, weights or weight formats are not those of the checkpoint; with `resume_with`
/// "recipe" that is a warning, and false is returned. `earlier_form`: asked where a value differs.
bool require_same_content(const checkpoint::Loaded& saved, const std::map<std::string, std::string>& fingerprints,
                          const recipe::Recipe& recipe, const std::string& resume_with,
                          const EarlierForm& earlier_form);

/// A stored recipe, which is complete: `extends` in it is refused, so that it names no file. `found`: the components.
/// Throws Error (bad_recipe).
recipe::Recipe parse_recipe(const std::string& text, const plugin::Found& found);

/// Why the run that goes on may not give the checkpoint's continuation to the last bit: a line for each of versions and
/// devices that changed; empty when none did.
std::string inexact_because(const checkpoint::Loaded& saved, const std::map<std::string, std::string>& fingerprints);

}  // namespace trainer::identity
