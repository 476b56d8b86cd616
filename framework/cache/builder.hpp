/// @file The cache phase: makes what is missing of a dataset's latents and text embeddings, and nothing else. Encoders
/// are made only when something is missing, one at a time, and freed before this returns.
#pragma once

#include <cache/key.hpp>
#include <cache/store.hpp>
#include <data/source.hpp>
#include <trainer/sdk/encoders.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trainer::cache {

struct Encoders {
  EncoderIdentity autoencoder, text_encoder;
  std::function<std::unique_ptr<Autoencoder>()> make_autoencoder;  ///< may be empty for a dataset without pictures
  std::function<std::unique_ptr<TextEncoder>()> make_text_encoder;
};

struct BuildOptions {
  /// Pictures of one size that are encoded together. 1, so that the bits of an entry cannot depend on its company.
  int64_t images_per_call = 1;
  /// Captions of one encoder call at most. A call reads the encoder's weights once and holds all embeddings of its
  /// captions: no more of them, either, than fit into bytes_per_call. What one takes is known after a call of
  /// `captions_first`.
  int64_t captions_per_call = 256, captions_first = 32;
  int64_t bytes_per_call = int64_t{1} << 30;
  /// Entries that are there are read whole up to this many bytes; of the others the header. (Training reads all whole.)
  uint64_t verify_bytes = uint64_t{4} << 30;
  /// Of decoded pictures, from their check before anything is encoded on: these are read once, the others twice.
  uint64_t keep_bytes = uint64_t{64} << 20;
  /// Of several processes that build one cache together, this one makes entry `key` when the key's number modulo
  /// `parts` is `part`; nothing of it depends on what others have made meanwhile.
  int64_t part = 0, parts = 1;
  std::function<void(int64_t done, int64_t total, const std::string& what)> progress;  ///< may be empty
};

/// Captions of a call when the embedding of one takes `bytes`; 1 at least.
int64_t captions_of_call(const BuildOptions& options, int64_t bytes);

/// Where a sample's tensors are.
struct Entry {
  std::string file;           ///< of the picture, for messages
  std::string latents, text;  ///< keys; `latents` is empty for a text without a picture
};

struct Built {
  std::vector<Entry> entries;  ///< one a sample of the dataset, in its order
  std::string empty_text;      ///< key of the empty caption, always cached: for dropped captions
  /// Distinct entries; found: also those that another part makes.
  std::size_t latents_found = 0, latents_made = 0, texts_found = 0, texts_made = 0;
  std::vector<std::string> notes;  ///< damaged entries that were made again
};

/// `more_captions`: others to be encoded, such as the prompts of samples (without trigger). Throws Error: bad_input
/// listing every picture that cannot be decoded, before anything is encoded; non_finite naming picture or caption; what
/// the encoders throw. What was finished stays cached.
Built build(const Store& store, const data::Dataset& dataset, std::span<const std::string> more_captions,
            const Encoders& encoders, const BuildOptions& options = {});

}  // namespace trainer::cache
