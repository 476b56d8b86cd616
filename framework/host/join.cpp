#include <base/log.hpp>
#include <host/host.hpp>
#include <identity/same_run.hpp>

#include <algorithm>
#include <chrono>
#include <optional>

namespace trainer::host {

/// How long a rank that failed waits for the others, which may have failed as well.
static constexpr std::chrono::seconds kPatience{30};

Member::Member(const RankedRequest& asked)
    : request(asked), place(distributed::find_place()), quiet(asked.quiet || place.rank != 0) {
  if (place.rank != 0) set_log_level(LogLevel::error);
}

distributed::Group Member::join() const {
  const std::chrono::seconds timeout(request.timeout);
  if (!request.failure) return {place, timeout};
  std::optional<distributed::Group> ranks;
  try {
    ranks.emplace(place, std::min(timeout, kPatience));
  } catch (const Error&) {
    throw request.failure->context("rank " + std::to_string(place.rank));
  }
  ranks->together([this] { throw *request.failure; });
  throw *request.failure;
}

recipe::Recipe recipe_of(const RecipeRequest& request, const plugin::Loader& plugins) {
  return recipe::load_resolved(request.recipe, plugin::schemas(plugins.found()));
}

recipe::Recipe resumed_recipe(const RunRequest& request, const plugin::Loader& plugins) {
  identity::require_named_checkpoint(request.resume);  // before the folder of the run is made
  recipe::Recipe recipe = recipe_of(request, plugins);
  if (request.resume_with != "checkpoint") return recipe;
  const auto overrides = identity::overrides_to_checkpoint(recipe, plugins.found(), request.resume);
  if (overrides.empty()) return recipe;
  recipe = recipe::changed(recipe, overrides, plugin::schemas(plugins.found()));
  log_warning(identity::gone_on_as_checkpoint(overrides));
  return recipe;
}

}  // namespace trainer::host
