/// @file The proof of a recipe: its memory strategies, placed as it says, against the run without them.
#pragma once

#include <assembly/assemble.hpp>
#include <prove/proof.hpp>
#include <prove/random_batches.hpp>

#include <string>

namespace trainer::prove {

/// Trains the recipe's model, cut to the first and the last block of each type, for three steps on random data of these
/// sizes: all strategies against those that pack weights on one device; when that fails, each alone, to name the one;
/// what packs weights against what it says its weights are, and against those of the file. `random_weights`: keyed
/// random numbers in the shapes of the file, of which nothing is read. Throws Error: bad_recipe, bad_input when nothing
/// can be proven; what the plain run throws.
Proof prove_recipe(assembly::Assembly& assembly, const Sizes& sizes, bool random_weights);

}  // namespace trainer::prove
