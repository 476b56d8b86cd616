/// @file The models of the equivalence matrix, and the loader that holds them with all strategies of the build.
#pragma once

#include <train/prove/cells.hpp>

#include <vector>

namespace trainer::equivalence {

/// Built-in components, the conformance model, and the plugins of `folders` and of TRAINER_TEST_PLUGINS.
plugin::Loader make_loader(std::vector<plugin::SearchFolder> folders);
/// Without further folders; one per process.
plugin::Loader& loader();

/// The conformance model, those of tests/out_of_tree (a diffusion toy, a causal language model, two experts) and flux2
/// on the parity directories.
const std::vector<prove::Subject>& subjects();

/// The memory strategies of this repository, without those of tests/out_of_tree (one of which knows host memory only).
std::vector<std::string> own_strategies();

/// Name of the objective that trains it.
std::string objective_of(const prove::Subject& subject);

/// What of a subject is trained and how: with each adapter (LoRA, the LoKr of tests/out_of_tree) and all of it, for its
/// objective.
std::vector<prove::Setting> settings_of(const prove::Subject& subject);

}  // namespace trainer::equivalence
