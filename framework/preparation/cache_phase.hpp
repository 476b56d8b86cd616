/// @file The phase before training: scan the data, encode what the cache lacks, free the encoders.
#pragma once

#include <assembly/assemble.hpp>
#include <data/source.hpp>
#include <distributed/group.hpp>
#include <execution/batch_source.hpp>
#include <metrics/console.hpp>
#include <sampling/samples.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace trainer::preparation {

/// What training and sampling need from the encoders; nothing else of them is left in memory.
struct Prepared {
  std::unique_ptr<execution::BatchSource> batches;
  std::unique_ptr<execution::BatchSource>
      validation;                  ///< held-out samples, as <run/validation_loss.hpp> takes them; null: none
  sampling::SamplePlan samples;    ///< of the recipe's [sample]; no prompts: nothing is drawn
  std::size_t pictures = 0;        ///< or texts, that are trained on, without repeats
  std::size_t held_out = 0;        ///< that are not
  std::vector<std::string> notes;  ///< for the user
  std::string encoders_identity;   ///< hash of encoder weights, tokenizer and options, for checkpoints
  std::string data_identity;       ///< hash of what is trained on, in order, for checkpoints
  int64_t latents_made = 0, captions_made = 0;  ///< not found in the cache, by all ranks
};

/// What is worth a warning about the data: "" or that no sample has a caption though not all are to be dropped.
std::string empty_captions_warning(const recipe::Recipe& recipe, const data::Dataset& dataset);

/// Distinct entries that the cache phase would make. What cannot be known, as when an encoder's files are missing,
/// counts as missing.
struct Uncached {
  std::size_t latents = 0, texts = 0;
};
Uncached uncached(assembly::Assembly& assembly, const data::Dataset& dataset);

/// How progress is shown: a bar on a terminal, plain lines elsewhere, nothing with --quiet.
metrics::ConsoleOptions console_options(bool quiet);

/// Collective: all ranks run one program with one recipe, model and encoders, each on devices of its own. Throws Error
/// naming the rank that does not. To be called before anything expensive; nothing to do for one process.
void agree(assembly::Assembly& assembly, distributed::Group& ranks);

/// Throws Error as data::scan and the encoders do; preempted when a signal asked to stop: what is encoded stays cached.
/// Of several ranks each encodes a part, into one folder that all see, when all have read the same data set.
/// Collective.
Prepared prepare(assembly::Assembly& assembly, metrics::Console& console,
                 distributed::Group& ranks = distributed::Group::alone());

/// Conditioning of texts for sampling, through the cache; the negative prompt is used where guidance needs it.
sampling::SamplePlan prepare_samples(assembly::Assembly& assembly, const std::vector<std::string>& prompts,
                                     metrics::Console& console);

}  // namespace trainer::preparation
