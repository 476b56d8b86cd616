/// @file The engine's commands, one source each. All throw Error; none returns on failure.
#pragma once

#include <engine/requests.hpp>
#include <plugin/loader.hpp>
#include <recipe/recipe.hpp>

namespace trainer::engine {

/// The recipe of a request. Throws Error (bad_recipe).
recipe::Recipe recipe_of(const RecipeRequest& request, const plugin::Loader& plugins);

int command_run(const RunRequest& request);
int command_check(const CheckRequest& request);
int command_prove(const ProveRequest& request);
int command_explain(const ExplainRequest& request);
int command_cache(const CacheRequest& request);
int command_sample(const SampleRequest& request);
int command_export(const ExportRequest& request);
int command_inspect(const InspectRequest& request);
int command_plugins_check(const PluginsCheckRequest& request);
int command_doctor(const Request& request);
int command_plan(const PlanRequest& request);

}  // namespace trainer::engine
