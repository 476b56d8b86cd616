/// @file What the CUDA kernels use of CUDA, for the C++ compiler; included before every kernel (kernel.cpp.in). What
/// stands behind it: launch.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

#include "launch.hpp"

#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local  // of the block that runs: the program's thread-local memory holds nothing else

struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
using std::max;
using std::min;

inline const uint3 &threadIdx = on_cpu::place.thread, &blockIdx = on_cpu::place.block;
inline const dim3& gridDim = on_cpu::place.grid;

using cudaStream_t = void*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream;
};

namespace on_cpu {

inline cudaError_t last_error = cudaSuccess;

template <typename... Parameters>
struct Kernel {
  void (*kernel)(Parameters...);
  std::tuple<Parameters...> arguments;
  static void run(const void* data) {
    const auto& self = *static_cast<const Kernel*>(data);
    std::apply(self.kernel, self.arguments);
  }
};

template <typename T>
const T* aligned(const T* at) {
  require_aligned(at, sizeof(T));
  return at;
}

}  // namespace on_cpu

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  const on_cpu::Kernel<Parameters...> call{kernel, {arguments...}};
  const bool taken = on_cpu::launch(config->gridDim, config->blockDim, {call.run, &call, sizeof call});
  return on_cpu::last_error = taken ? on_cpu::last_error : cudaErrorInvalidConfiguration;
}
inline cudaError_t cudaGetLastError() { return std::exchange(on_cpu::last_error, cudaSuccess); }

inline void __syncthreads(on_cpu::Where where = on_cpu::Where::current()) { on_cpu::wait_for_block(where); }
inline void __syncwarp(unsigned mask = 0xffffffffU, on_cpu::Where where = on_cpu::Where::current()) {
  on_cpu::wait_for_warp(mask, where);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int with, on_cpu::Where where = on_cpu::Where::current()) {
  static_assert(sizeof(T) == sizeof(uint32_t));
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = on_cpu::exchange(mask, bits, threadIdx.x % 32 ^ static_cast<unsigned>(with), where);
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}
template <typename T>
T __ldg(const T* from) {
  on_cpu::read_through_cache(on_cpu::aligned(from));
  return *from;
}
template <typename T>
void __stwb(T* to, T value) {
  *const_cast<T*>(on_cpu::aligned(to)) = value;
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
/// Never fused with what is added to it.
inline float __fmul_rn(float a, float b) {
  const volatile float product = a * b;
  return product;
}
