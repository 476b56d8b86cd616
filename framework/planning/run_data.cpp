#include <c10/util/accumulate.h>
#include <cache/builder.hpp>
#include <cache/dataset.hpp>
#include <planning/run_data.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace trainer::planning {
namespace {

namespace fs = std::filesystem;

bool is_text(const recipe::Data& source, const fs::path& file) {
  const std::string name = file.filename().string();
  return std::any_of(source.captions.begin(), source.captions.end(),
                     [&](const std::string& ending) { return name.ends_with(ending); });
}

/// That may be samples of it.
std::optional<int64_t> files_in(const recipe::Data& source, bool pictures) {
  int64_t count = 0;
  std::error_code error;
  fs::recursive_directory_iterator entries(source.folder, error);
  if (error) return std::nullopt;
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    if (!source.recursive && entries->is_directory(error)) entries.disable_recursion_pending();
    if (entries->is_regular_file(error) && is_text(source, entries->path()) != pictures) ++count;
  }
  if (error) return std::nullopt;
  return count;
}

}  // namespace

std::optional<int64_t> files_of(const recipe::Recipe& recipe) {
  int64_t count = 0;
  for (const recipe::Data& source : recipe.data) {
    const std::optional<int64_t> files = files_in(source, recipe.pictures());
    if (!files) return std::nullopt;
    count += *files;
  }
  return count;
}

std::optional<int64_t> held_out_files(const recipe::Recipe& recipe) {
  int64_t held = 0, others = 0;
  for (const recipe::Data& source : recipe.data) {
    const std::optional<int64_t> files = files_in(source, recipe.pictures());
    if (!files) return std::nullopt;
    (source.validation ? held : others) += *files;
  }
  if (recipe.validation.fraction == 0) return held;
  return held + std::max<int64_t>(std::llround(recipe.validation.fraction * static_cast<double>(others)), 1);
}

int64_t texts_of(const recipe::Recipe& recipe, std::optional<int64_t> files) {
  const int64_t call = cache::BuildOptions().captions_per_call;
  if (!files) return call;
  const auto prompts = static_cast<int64_t>(recipe.sample.prompts.size());
  return std::min(call, *files + 1 + (prompts > 0 ? prompts + 1 : 0));
}

int64_t captions_at_once(int64_t bytes) {
  const cache::BuildOptions options;
  return std::max(options.captions_first, cache::captions_of_call(options, bytes));
}

int64_t latent_bytes(const BatchShape& batch) {
  return batch.latents.empty() ? 0 : c10::multiply_integers(batch.latents) * static_cast<int64_t>(sizeof(float));
}

int64_t text_bytes(const BatchShape& batch) {
  int64_t bytes = 0;
  for (const TensorInfo& info : batch.conditioning)
    bytes += c10::multiply_integers(info.shape) * static_cast<int64_t>(c10::elementSize(info.dtype));
  return bytes;
}

RunData held_data(const recipe::Recipe& recipe, const BatchShape& batch, std::optional<int64_t> files) {
  const auto prompts = static_cast<int64_t>(recipe.sample.prompts.size());
  // Not fewer because the run is short: one that goes on has the same plan.
  const int64_t samples = files.value_or(recipe.run.steps * recipe.train.batch_size);
  const int64_t empty = recipe.train.caption_dropout > 0 ? text_bytes(batch) : 0;
  const int64_t cached = samples * (latent_bytes(batch) + text_bytes(batch)) + empty;
  // Every prompt has the negative one beside it.
  return {2 * prompts * text_bytes(batch), std::min(cached, static_cast<int64_t>(cache::kKeptBytes))};
}

}  // namespace trainer::planning
