/// @file What a run says of itself before its first step, on the terminal and in its folder.
#pragma once

#include <preparation/cache_phase.hpp>
#include <run/run_folder.hpp>
#include <run/training.hpp>

namespace trainer::run {

/// Logs the model, what of it is trained, and on how many samples.
void announce(assembly::Assembly& assembly, const Training& training, const preparation::Prepared& data,
              distributed::Group& ranks);

/// Of the writer: recipe.toml, the resolved recipe, and in run.json the plugins that did not come with the program and
/// whether they are proven. Warns when they are not.
void describe_run(assembly::Assembly& assembly, RunFolder& folder, distributed::Group& ranks);

}  // namespace trainer::run
