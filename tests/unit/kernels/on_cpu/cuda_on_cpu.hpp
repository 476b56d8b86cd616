/// @file What the CUDA kernels use of CUDA, for the C++ compiler: the threads of a block take turns on one thread of
/// the CPU, blocks follow each other. Slow, for tests of what kernels compute where there is no GPU; says nothing about
/// races between blocks, nor about speed. Included before every translated kernel (translate.py). Accesses in packs are
/// checked for their alignment.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __shared__ static  // of the block that runs

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct float2 {
  float x, y;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
using cudaStream_t = void*;
constexpr int cudaErrorInvalidValue = 1;
inline int cudaGetLastError() { return 0; }
using std::max;
using std::min;

namespace on_cpu {

extern dim3 thread_of_block, block_of_grid, size_of_grid;

/// A launch: body() once for each thread of each block.
void run(dim3 grid, unsigned threads, const std::function<void()>& body);
inline void run(unsigned grid, unsigned threads, const std::function<void()>& body) { run(dim3{grid}, threads, body); }

void wait_for_block();
/// The bits that the lane `with` of this warp brings to the same call.
uint32_t exchange(uint32_t bits, unsigned with);

template <typename T>
const T* checked(const T* place) {
  if (reinterpret_cast<uintptr_t>(place) % alignof(T) != 0) std::abort();
  return place;
}

}  // namespace on_cpu

#define threadIdx on_cpu::thread_of_block
#define blockIdx on_cpu::block_of_grid
#define gridDim on_cpu::size_of_grid

inline void __syncthreads() { on_cpu::wait_for_block(); }
template <typename T>
T __shfl_xor_sync(unsigned, T value, int step) {
  static_assert(sizeof(T) == sizeof(uint32_t));
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = on_cpu::exchange(bits, static_cast<unsigned>(step));
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}
template <typename T>
T __ldg(const T* from) {
  return *on_cpu::checked(from);
}
template <typename T>
void __stwb(T* to, T value) {
  *const_cast<T*>(on_cpu::checked(to)) = value;
}
inline float __uint_as_float(unsigned bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}
inline unsigned __float_as_uint(float number) {
  unsigned bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}
