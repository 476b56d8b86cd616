/// @file Keyed random numbers: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
///
/// Every random number of a run is a function of (seed, stream, step, sample, element): nothing has to be saved for a
/// resume, any step can be replayed, and results do not depend on workers, ranks or devices. No std:: distribution is
/// used, since their results differ between standard libraries. Free of LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace trainer {

/// What a stream of random numbers is for. Values are part of the checkpoint format: append only.
enum class RngStream : uint32_t {
  order = 1,
  noise = 2,
  timestep = 3,
  caption_dropout = 4,
  adapter_init = 5,
  sample_noise = 6,
  stochastic_rounding = 7,
  synthetic = 8,
  crop = 9,
  validation = 10,
  timestep_normal = 11,
};

/// One Philox block: four 32-bit words for a 64-bit key and a 128-bit counter.
std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> counter);

/// A cursor into one keyed stream. Copyable; two equal keys give equal numbers. Keys differ whenever stream, step or
/// sample differ (up to 32 bits each exactly; larger numbers are hashed into the key).
class KeyedRng {
 public:
  KeyedRng(uint64_t seed, RngStream stream, uint64_t step = 0, uint64_t sample = 0);
  uint32_t next_u32();
  uint64_t next_u64();
  /// Uniform in [0, 1) with 53 bits.
  double uniform();
  /// Standard normal (Box-Muller in double: the last bit may depend on the C library). Starts a fresh block.
  double normal();
  /// Uniform in [0, bound), unbiased (Lemire). bound > 0.
  uint64_t below(uint64_t bound);
  /// Fills with standard normals as float, from a fresh block; on a new cursor element i depends on the key and i
  /// alone, not on the length. Two normals per block: pieces of even length equal one fill.
  void fill_normal(std::span<float> out);
  /// The same with uniform numbers in [low, high), four per block.
  void fill_uniform(std::span<float> out, float low, float high);

 private:
  std::array<uint32_t, 4> next_block();

  uint64_t key_;
  uint32_t stream_;
  std::array<uint32_t, 2> low_;  // step and sample: the upper two counter words
  uint64_t position_ = 0;        // block number
  std::array<uint32_t, 4> block_{};
  unsigned used_ = 4;
};

/// Fisher-Yates permutation of 0..count-1.
std::vector<uint64_t> permutation(uint64_t count, KeyedRng rng);

}  // namespace trainer
