/// @file The engine's commands, one source each (command_*.cpp). All throw Error; none returns on failure.
#pragma once

#include <assembly/request.hpp>
#include <plugin/loader.hpp>
#include <recipe/recipe.hpp>

namespace trainer::engine {

/// The recipe of a request. Throws Error (bad_recipe).
recipe::Recipe recipe_of(const assembly::Request& request, const plugin::Loader& plugins, bool paths_must_exist = true);

int command_run(const assembly::Request& request);
int command_check(const assembly::Request& request);
int command_prove(const assembly::Request& request);
int command_explain(const assembly::Request& request);
int command_cache(const assembly::Request& request);
int command_sample(const assembly::Request& request);
int command_export(const assembly::Request& request);
int command_inspect(const assembly::Request& request);
int command_plugins_check(const assembly::Request& request);
int command_doctor(const assembly::Request& request);
int command_plan(const assembly::Request& request);

}  // namespace trainer::engine
