/// @file Memory for kernels under test, and what every launch is held to: the same bits in every order of threads.
#pragma once

#include <gtest/gtest.h>
#include <kernels/eight_bits_numbers.h>
#include <kernels/cuda.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "launch.hpp"
#include "watch.hpp"

extern "C" {
const trainer::kernels::CudaKernels* trainer_cuda_kernels_1(int layout);
// Where the kernels are compiled for AddressSanitizer.
[[gnu::weak]] void __asan_poison_memory_region(const volatile void* begin, std::size_t size);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* begin, std::size_t size);
}

namespace trainer::kernels::test {

using on_cpu::Role;

/// The table of libtrainer_cuda_kernels.so, of kernels that were compiled for the CPU.
inline const CudaKernels& cuda() { return *trainer_cuda_kernels_1(kArgumentsLayout); }

/// Numbers that look like chance, of a seed.
inline uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
  x = (x ^ x >> 27) * 0x94d049bb133111ebU;
  return x ^ x >> 31;
}

/// `count` elements, the first `offset` elements behind a multiple of 256 bytes, guards before and behind them.
template <typename T>
class Buffer {
 public:
  Buffer(Role role, int64_t count, int64_t offset = 0)
      : count_(count), bytes_(static_cast<std::size_t>(count + offset) * sizeof(T) + 2 * kMargin + kAlign, kGuard) {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data()) + kMargin;
    first_ = reinterpret_cast<T*>((at + kAlign - 1) / kAlign * kAlign) + offset;
    on_cpu::watch(first_, size(), role);
    if (__asan_poison_memory_region == nullptr) return;
    __asan_poison_memory_region(bytes_.data(), static_cast<std::size_t>(begin() - bytes_.data()));
    __asan_poison_memory_region(end(), static_cast<std::size_t>(bytes_.data() + bytes_.size() - end()));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(bytes_.data(), bytes_.size());
    const auto guard = [](unsigned char byte) { return byte == kGuard; };
    EXPECT_TRUE(std::all_of(bytes_.data(), begin(), guard)) << "something was written before a buffer";
    EXPECT_TRUE(std::all_of(end(), bytes_.data() + bytes_.size(), guard)) << "something was written behind a buffer";
    on_cpu::unwatch(first_, size());
  }
  /// About `middle`, at most `spread` away; any bits where T is a code or a whole number.
  Buffer& random(uint64_t seed, double spread = 1, double middle = 0) {
    for (int64_t i = 0; i < count_; ++i) {
      const uint64_t bits = mixed(seed * 1000003 + static_cast<uint64_t>(i));
      if constexpr (std::is_integral_v<T> || sizeof(T) == 1)
        std::memcpy(static_cast<void*>(first_ + i), &bits, sizeof(T));
      else
        round_to(static_cast<float>(middle + spread * (static_cast<double>(bits >> 11) / 0x1p52 - 1)), first_ + i);
    }
    return *this;
  }
  T* data() { return first_; }
  T& operator[](int64_t i) { return first_[i]; }
  [[nodiscard]] double at(int64_t i) const { return to_float(first_[i]); }
  [[nodiscard]] int64_t count() const { return count_; }
  unsigned char* begin() { return reinterpret_cast<unsigned char*>(first_); }
  unsigned char* end() { return begin() + size(); }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(count_) * sizeof(T); }

 private:
  static constexpr unsigned char kGuard = 0x55;
  static constexpr std::size_t kMargin = 128, kAlign = 256;
  int64_t count_;
  T* first_ = nullptr;
  std::vector<unsigned char> bytes_;
};

/// A result's memory, filled with the pattern before each launch.
struct Result {
  unsigned char *begin, *end;
  static constexpr unsigned char kPattern = 0xa5;
  template <typename T>
  Result(Buffer<T>& buffer) : begin(buffer.begin()), end(buffer.end()) {}
};

struct Way {
  std::string name;
  on_cpu::Options options;
};
/// How launches are gone about. A grid that is smaller than the data must give the same bits: kernels loop over the
/// rest.
const std::vector<Way>& ways();
/// The ways are one from now on: for sizes that take long.
void go_one_way();

/// Launches in every way; all must give the bits of the first, which stay. False after a fault or an error.
bool same_in_every_way(const std::string& what, const std::vector<Result>& results, const std::function<int()>& launch);

}  // namespace trainer::kernels::test
