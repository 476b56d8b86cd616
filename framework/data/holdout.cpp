#include <data/holdout.hpp>

#include <base/hash.hpp>
#include <base/printable.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace trainer::data {
namespace {

/// Contents with the lowest hashes, of those of the sources that are trained on.
std::set<std::string> chosen(const Dataset& dataset, const recipe::Recipe& recipe) {
  std::set<std::pair<std::string, std::string>> contents;  // hash, content
  for (const Sample& sample : dataset.samples) {
    if (recipe.data[sample.source].validation) continue;
    const std::string hash =
        FieldHash().add("validation").add(std::to_string(recipe.validation.seed)).add(sample.content).hex();
    contents.emplace(hash, sample.content);
  }
  if (contents.size() < 2)
    throw Error(ExitCode::bad_input,
                "validation.fraction: the data set has " + std::to_string(contents.size()) +
                    " different sample(s), of which none can be held out; add some, or name others in a [[data]] table "
                    "with validation = true",
                "DATASET");
  const auto asked = std::llround(recipe.validation.fraction * static_cast<double>(contents.size()));
  const auto count = std::clamp<int64_t>(asked, 1, static_cast<int64_t>(contents.size()) - 1);
  std::set<std::string> held;
  for (auto it = contents.begin(); static_cast<int64_t>(held.size()) < count; ++it) held.insert(it->second);
  return held;
}

}  // namespace

Holdout hold_out(const Dataset& dataset, const recipe::Recipe& recipe) {
  Holdout holdout;
  const std::set<std::string> held = recipe.validation.fraction > 0 ? chosen(dataset, recipe) : std::set<std::string>();
  std::set<std::string> trained;
  for (const Sample& sample : dataset.samples) {
    const bool out = recipe.data[sample.source].validation || held.contains(sample.content);
    holdout.held.push_back(out);
    if (!out) trained.insert(sample.content);
  }
  std::string both;
  for (std::size_t i = 0; i < dataset.samples.size(); ++i)
    if (holdout.held[i] && trained.contains(dataset.samples[i].content))
      both += (both.empty() ? "" : ", ") + printable(dataset.samples[i].file.filename().string());
  if (!both.empty())
    holdout.notes.push_back("trained on and held out for validation, too, so that its loss says less: " + both);
  return holdout;
}

Dataset part_of(const Dataset& dataset, const Holdout& holdout, bool held) {
  Dataset part;
  for (std::size_t i = 0; i < dataset.samples.size(); ++i)
    if (holdout.held[i] == held) part.samples.push_back(dataset.samples[i]);
  return part;
}

}  // namespace trainer::data
