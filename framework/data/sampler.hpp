/// @file Which samples make which step: a pure function of (seed, step), so a resume needs the step number only.
///
/// Samples of a step share a bucket in groups of `group_size` (by default the whole step), because only equal sizes can
/// be stacked. Each bucket has an endless stream: its samples, each `repeats` times, in a keyed permutation, then in
/// another one, and so on; a group takes the next `group_size` of it and may run over the end of a permutation into
/// the next (this is how what does not fill a group is carried on, nothing is dropped or padded). Which bucket is
/// served when: in a cycle of N groups (N = samples times repeats) a bucket with n of them is served n times, once in
/// each n-th of the cycle at a keyed place. So in every cycle every sample is drawn exactly group_size * repeats times,
/// large and small buckets alike, and with one bucket the order is simply one permutation after another.
///
/// What a step draws, and the keys, depend on batch_size and group_size, not on micro_batch_size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trainer::data {

/// A sample as the sampler sees it: which size it has, how often it occurs in an epoch (at least 1).
struct SamplerItem {
  uint64_t bucket = 0;
  int64_t repeats = 1;
};

struct SamplerOptions {
  uint64_t seed = 0;
  int64_t batch_size = 1;        ///< samples of an optimiser step, over all ranks
  int64_t micro_batch_size = 1;  ///< divides group_size
  int64_t group_size = 0;        ///< samples of one bucket in a row; divides batch_size; 0: batch_size
  double caption_dropout = 0;    ///< probability
};

struct Draw {
  std::size_t sample = 0;     ///< index into the items
  uint64_t key = 0;           ///< position in the run's order, step * batch_size + i: keys the sample's randomness
  bool drop_caption = false;  ///< use the empty caption
  friend bool operator==(const Draw&, const Draw&) = default;
};

class Sampler {
 public:
  /// Throws Error: bad_input without items; bad_recipe for sizes that do not divide.
  Sampler(std::span<const SamplerItem> items, const SamplerOptions& options);

  /// Micro-batches of a step.
  [[nodiscard]] int64_t micros() const { return options_.batch_size / options_.micro_batch_size; }
  /// The samples of one micro-batch (micro < micros()), all of one bucket. Steps count from 0.
  [[nodiscard]] std::vector<Draw> batch(uint64_t step, int64_t micro) const;
  /// Samples of an epoch: all, with repeats.
  [[nodiscard]] uint64_t epoch_size() const { return epoch_size_; }

 private:
  struct Stream {
    uint64_t bucket;
    std::vector<std::size_t> instances;  // sample indices, each `repeats` times
  };
  struct Service {
    std::size_t stream;
    uint64_t turn;  // how often the stream was served before, in this cycle
  };
  /// Order of service of a cycle; kept until another cycle is asked for.
  const std::vector<Service>& cycle(uint64_t number) const;
  /// Sample at a position of a stream.
  std::size_t at(std::size_t stream, uint64_t position) const;

  SamplerOptions options_;
  std::vector<Stream> streams_;
  uint64_t epoch_size_ = 0;
  // Memories of pure functions, for speed only. Not thread-safe.
  struct Permutation {
    uint64_t epoch = ~uint64_t{0};
    std::vector<uint64_t> order;
  };
  mutable std::vector<Permutation> permutations_;  // one a stream
  mutable uint64_t cycle_number_ = ~uint64_t{0};
  mutable std::vector<Service> cycle_;
};

}  // namespace trainer::data
