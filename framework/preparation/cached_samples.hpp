/// @file The samples that are held out, read from the cache; and what is left of a data set without them.
#pragma once

#include <cache/builder.hpp>
#include <data/holdout.hpp>
#include <execution/batch_source.hpp>

#include <memory>

namespace trainer::preparation {

/// `micro` is the sample, `step` the timestep, as <run/validation_loss.hpp> asks for them. The key of a sample
/// is a hash of its picture, caption and size: it does not change with what else is in the data set. Entries are read
/// anew each time, so that a run keeps nothing of them in memory.
std::unique_ptr<execution::BatchSource> held_out_samples(const cache::Store& store, const data::Dataset& dataset,
                                                         const data::Holdout& holdout, const cache::Built& built);

/// Takes what is held out from the data set and from its entries.
void keep_trained(data::Dataset& dataset, const data::Holdout& holdout, cache::Built& built);

}  // namespace trainer::preparation
