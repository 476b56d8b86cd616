/// @file Which samples of a data set are held out from training, for validation.
#pragma once

#include <data/source.hpp>

#include <string>
#include <vector>

namespace trainer::data {

struct Holdout {
  std::vector<bool> held;          ///< one a sample of the data set, in its order
  std::vector<std::string> notes;  ///< for the user
};

/// All samples of sources with `validation`, and of the others as many distinct contents as `validation.fraction` says,
/// at least one if it is not 0: those with the lowest hashes of content and `validation.seed`. What is equal to the
/// byte is on one side. Throws Error (bad_input) when the fraction leaves nothing to train on.
Holdout hold_out(const Dataset& dataset, const recipe::Recipe& recipe);

/// The samples that are held out, or the others; without notes.
Dataset part_of(const Dataset& dataset, const Holdout& holdout, bool held);

}  // namespace trainer::data
