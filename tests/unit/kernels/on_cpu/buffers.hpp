/// @file Memory for kernels under test: numbers by seed, and guards behind the end.
#pragma once

#include <kernels/eight_bits_numbers.h>
#include <kernels/cuda.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

namespace trainer::kernels::test {

/// `count` elements, the first at a multiple of 16 bytes plus `offset` elements, with guards behind them.
template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t count, int64_t offset = 0) : count_(count), offset_(offset), bytes_(size(), kGuard) {}
  /// Between -1 and 1; bits of every kind where T is a code or a whole number.
  static Buffer random(int64_t count, unsigned seed, int64_t offset = 0) {
    Buffer made(count, offset);
    unsigned state = seed * 2654435761U + 1;
    for (int64_t i = 0; i < count; ++i) {
      state = state * 1664525U + 1013904223U;
      if constexpr (std::is_integral_v<T> || sizeof(T) == 1)
        std::memcpy(made.data() + i, reinterpret_cast<const char*>(&state) + 4 - sizeof(T), sizeof(T));
      else
        round_to(static_cast<float>(state >> 8) / (1U << 23) - 1.0F, made.data() + i);
    }
    return made;
  }
  T* data() { return reinterpret_cast<T*>(begin()); }
  const T* data() const { return reinterpret_cast<const T*>(const_cast<Buffer*>(this)->begin()); }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }
  /// Whether nothing was written beside the elements.
  [[nodiscard]] bool intact() const {
    const auto* const first = reinterpret_cast<const unsigned char*>(data());
    const auto guard = [](unsigned char byte) { return byte == kGuard; };
    return std::all_of(bytes_.data(), first, guard) &&
           std::all_of(first + count_ * sizeof(T), bytes_.data() + bytes_.size(), guard);
  }

 private:
  static constexpr unsigned char kGuard = 0x55;
  static constexpr std::size_t kMargin = 64, kAlign = 16;
  [[nodiscard]] std::size_t size() const {
    return static_cast<std::size_t>(count_ + offset_) * sizeof(T) + 2 * kMargin;
  }
  unsigned char* begin() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data()) + kAlign;
    return bytes_.data() + (kAlign - at % kAlign) % kAlign + kAlign + static_cast<std::size_t>(offset_) * sizeof(T);
  }

  int64_t count_, offset_;
  std::vector<unsigned char> bytes_;
};

}  // namespace trainer::kernels::test

extern "C" const trainer::kernels::CudaKernels* trainer_cuda_kernels_1(int layout);

namespace trainer::kernels::test {

/// The kernels of libtrainer_cuda_kernels.so, translated and linked into the test.
inline const CudaKernels& cuda_on_cpu() { return *trainer_cuda_kernels_1(kArgumentsLayout); }

}  // namespace trainer::kernels::test
