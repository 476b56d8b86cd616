/// @file What a run holds of its data set besides the micro-batch at work, foretold without opening a file of it.
#pragma once

#include <planning/dry_run.hpp>
#include <recipe/recipe.hpp>

#include <cstdint>
#include <optional>

namespace trainer::planning {

/// Files in the recipe's data folders that may be samples, no fewer than there are samples; nullopt: a folder is not
/// there. A metadata file that names one picture with several captions is not looked into.
std::optional<int64_t> files_of(const recipe::Recipe& recipe);

/// Samples that are held out for validation, as many as the folders seem to hold; nullopt: a folder is not there.
std::optional<int64_t> held_out_files(const recipe::Recipe& recipe);

/// Texts that are encoded in one call of the encoder at most, and in all at most: captions, the empty one, prompts.
int64_t texts_of(const recipe::Recipe& recipe, std::optional<int64_t> files);
/// Texts of one call at most when the embedding of one takes `bytes`.
int64_t captions_at_once(int64_t bytes);

/// Bytes, at most.
struct RunData {
  int64_t prompts = 0;  ///< conditioning of the sample prompts: for the life of the run, on the first device
  int64_t cached = 0;   ///< samples that were read: kept in the host's memory, up to the reader's limit
};
RunData held_data(const recipe::Recipe& recipe, const BatchShape& batch, std::optional<int64_t> files);

/// One sample as the cache gives it.
int64_t latent_bytes(const BatchShape& batch);
int64_t text_bytes(const BatchShape& batch);

}  // namespace trainer::planning
