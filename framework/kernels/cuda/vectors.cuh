/// @file Several neighbouring elements in one access of memory, grids in which no thread divides to find its place, and
/// the choice of element types of the kernels for 8-bit numbers.
#pragma once

#include <kernels/eight_bits_numbers.h>
#include <kernels/cuda/device.cuh>

namespace trainer::kernels {

/// `kCount` elements that lie in memory as one, at a multiple of their size (16 bytes at most).
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T at[kCount];
};

/// The largest piece of a pack that memory takes at once. Read and written by intrinsics: plain assignments are taken
/// apart by the compiler. What is read is not written by the same kernel.
template <int kBytes>
struct PieceOf {
  using Type = uint4;
};
template <>
struct PieceOf<8> {
  using Type = uint2;
};
template <>
struct PieceOf<4> {
  using Type = uint32_t;
};
template <>
struct PieceOf<2> {
  using Type = uint16_t;
};
template <>
struct PieceOf<1> {
  using Type = uint8_t;
};

template <typename T, int kCount>
__device__ inline Pack<T, kCount> read_pack(const T* from) {
  using Piece = typename PieceOf<sizeof(Pack<T, kCount>)>::Type;
  Piece pieces[sizeof(Pack<T, kCount>) / sizeof(Piece)];
  int place = 0;
  for (Piece& piece : pieces) piece = __ldg(reinterpret_cast<const Piece*>(from) + place++);
  Pack<T, kCount> values;
  memcpy(&values, pieces, sizeof values);
  return values;
}
template <typename T, int kCount>
__device__ inline void write_pack(T* to, const Pack<T, kCount>& values) {
  using Piece = typename PieceOf<sizeof(Pack<T, kCount>)>::Type;
  Piece pieces[sizeof(Pack<T, kCount>) / sizeof(Piece)];
  memcpy(pieces, &values, sizeof values);
  int place = 0;
  for (const Piece& piece : pieces) __stwb(reinterpret_cast<Piece*>(to) + place++, piece);
}

/// Whether rows of elements of `size` bytes, `step` apart, can be taken in packs of `count`.
inline bool takes_packs(const void* data, int64_t rows, int64_t step, int64_t size, int64_t count) {
  const int64_t bytes = size * count < 16 ? size * count : 16;
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0 &&
         (rows <= 1 || step * size % bytes == 0);
}

/// Blocks over columns, kEach of them a thread, over rows and over samples; kernels loop over what is more.
template <int kEach>
dim3 grid_for(int64_t rows, int64_t width, int64_t samples = 1) {
  constexpr int64_t kMost = 65535, kColumns = static_cast<int64_t>(kThreads) * kEach;
  return {blocks_for((width + kColumns - 1) / kColumns), static_cast<unsigned>(rows < kMost ? rows : kMost),
          static_cast<unsigned>(samples < kMost ? samples : kMost)};
}

/// use(row, column, constant) for the elements of this thread: `constant.value` of them from there on.
template <int kCount>
struct Constant {
  static constexpr int value = kCount;
};
template <int kEach, typename Use>
__device__ inline void for_elements(int64_t rows, int64_t width, const Use& use) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, packs = width / kEach;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    for (int64_t i = first; i < packs; i += step) use(row, i * kEach, Constant<kEach>{});
    for (int64_t i = packs * kEach + first; i < width; i += step) use(row, i, Constant<1>{});
  }
}

/// use(element) with an element of the type; false for other types.
template <typename Use>
bool with_floating(Number number, const Use& use) {
  if (number == Number::f32) return use(float{}), true;
  if (number == Number::bf16) return use(Bfloat16{}), true;
  if (number == Number::f16) return use(Float16{}), true;
  return false;
}
template <typename Use>
bool with_code(Number number, const Use& use) {
  if (number == Number::e4m3) return use(E4m3{}), true;
  if (number == Number::e5m2) return use(E5m2{}), true;
  if (number == Number::int8) return use(int8_t{}), true;
  return false;
}

/// Of a launch with element types: its error, or that there is no kernel for them.
inline int error_of_launch(bool launched) {
  return static_cast<int>(launched ? cudaGetLastError() : cudaErrorInvalidValue);
}

}  // namespace trainer::kernels
