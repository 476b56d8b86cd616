/// @file The models of the equivalence matrix, and the loader that holds them with all strategies of the build.
#pragma once

#include <train/prove/cells.hpp>

#include <vector>

namespace trainer::equivalence {

/// Built-in components, the conformance model, and the plugins of `folders` and of TRAINER_TEST_PLUGINS.
plugin::Loader make_loader(std::vector<plugin::SearchFolder> folders);
/// Without further folders; one per process.
plugin::Loader& loader();

/// The conformance model, the toy of tests/out_of_tree and flux2 on the parity directories.
const std::vector<prove::Subject>& subjects();

}  // namespace trainer::equivalence
