/// @file Whether a checkpoint may be gone on from: same run id, same recipe where it matters, same content.
#pragma once

#include <checkpoint/store.hpp>
#include <recipe/recipe.hpp>
#include <train/artifacts/train_state.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace trainer::train {

/// The id of the run that began this folder, or a new one that is written down in its run.json. Throws Error
/// (bad_input) for a damaged one.
std::string run_id_of(const std::filesystem::path& folder);

/// Throws Error (bad_recipe) listing the keys in which the recipe differs from the checkpoint's, unless they change
/// nothing of what is trained. `before`: the recipe of the checkpoint.
void require_same_recipe(const recipe::Recipe& before, const recipe::Recipe& now, const std::filesystem::path& folder);

/// Throws Error (bad_recipe) when data, weights or weight formats are not those of the checkpoint.
void require_same_content(const checkpoint::Loaded& saved, const std::map<std::string, std::string>& fingerprints,
                          const recipe::Recipe& recipe);

/// A file that is gone when its user is, also when that throws.
class TemporaryFile {
 public:
  TemporaryFile(std::filesystem::path path, std::string_view content);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace trainer::train
