#include <base/rng.hpp>

#include <trainer/sdk/error.hpp>

#include <cmath>
#include <numeric>
#include <utility>

namespace trainer {
namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

/// 53 bits out of two words, in [0, 1).
double unit(uint32_t low, uint32_t high) { return static_cast<double>(((uint64_t{high} << 32) | low) >> 11) * 0x1p-53; }

/// Box-Muller: two independent standard normals out of one block. 1 - u keeps the logarithm finite.
std::array<double, 2> normal_pair(const std::array<uint32_t, 4>& block) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - unit(block[0], block[1])));
  const double angle = kTwoPi * unit(block[2], block[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> counter) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9;  // golden ratio
    key1 += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

KeyedRng::KeyedRng(uint64_t seed, RngStream stream, uint64_t step, uint64_t sample)
    : key_(seed),
      stream_(static_cast<uint32_t>(stream)),
      low_{static_cast<uint32_t>(step), static_cast<uint32_t>(sample)} {
  if ((step | sample) >> 32 == 0) return;
  // A step or sample number (for instance a hash) of more than 32 bits: its upper half goes into the key.
  const auto mixed =
      philox(seed, {static_cast<uint32_t>(step >> 32), 0xFFFFFFFF, static_cast<uint32_t>(sample >> 32), 1});
  key_ ^= (uint64_t{mixed[1]} << 32) | mixed[0];
}

std::array<uint32_t, 4> KeyedRng::next_block() {
  // Streams are small numbers: the upper byte of word 1 tells them apart, the rest counts blocks beyond 2^32.
  const uint32_t upper = (stream_ << 24) ^ static_cast<uint32_t>(position_ >> 32);
  used_ = 4;
  return philox(key_, {static_cast<uint32_t>(position_++), upper, low_[0], low_[1]});
}

uint32_t KeyedRng::next_u32() {
  if (used_ == 4) {
    block_ = next_block();
    used_ = 0;
  }
  return block_[used_++];
}

uint64_t KeyedRng::next_u64() {
  const uint64_t low = next_u32();
  return (uint64_t{next_u32()} << 32) | low;
}

double KeyedRng::uniform() {
  const uint32_t low = next_u32();
  return unit(low, next_u32());
}

double KeyedRng::normal() { return normal_pair(next_block())[0]; }

uint64_t KeyedRng::below(uint64_t bound) {
  if (bound == 0) throw Error(ExitCode::failed, "a random number below 0 was asked for");
  // Lemire, "Fast random integer generation in an interval", 2019.
  __extension__ using Wide = unsigned __int128;
  Wide product = Wide{next_u64()} * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t biased = (0 - bound) % bound;
    while (static_cast<uint64_t>(product) < biased) product = Wide{next_u64()} * bound;
  }
  return static_cast<uint64_t>(product >> 64);
}

void KeyedRng::fill_normal(std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); i += 2) {
    const auto pair = normal_pair(next_block());
    out[i] = static_cast<float>(pair[0]);
    if (i + 1 < out.size()) out[i + 1] = static_cast<float>(pair[1]);
  }
}

void KeyedRng::fill_uniform(std::span<float> out, float low, float high) {
  for (std::size_t i = 0; i < out.size(); i += 4) {
    const auto block = next_block();
    for (std::size_t j = 0; j < 4 && i + j < out.size(); ++j) {
      out[i + j] = low + (high - low) * (static_cast<float>(block[j] >> 8) * 0x1p-24F);
    }
  }
}

std::vector<uint64_t> permutation(uint64_t count, KeyedRng rng) {
  std::vector<uint64_t> order(count);
  std::iota(order.begin(), order.end(), uint64_t{0});
  for (uint64_t i = count; i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

}  // namespace trainer
