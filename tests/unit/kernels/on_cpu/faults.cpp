#include "faults.hpp"

#include "cuda_on_cpu.hpp"

namespace trainer::kernels::test {
namespace {

constexpr int kThreads = 256, kWarp = 32;

template <Planted kFault>
__global__ void faulty(const float* x, float* y, int count) {
  __shared__ float parts[kThreads / kWarp];
  const int i = static_cast<int>(threadIdx.x), warp = i / kWarp;
  if (kFault == Planted::ends_before_barrier && i == 77) return;
  if (kFault == Planted::pack_not_aligned) __ldg(reinterpret_cast<const uint2*>(x + i));
  float value = x[kFault == Planted::reads_beyond ? count - kThreads + 1 + i : i];
  if (kFault == Planted::lane_missing && i == 40) return;
  if (kFault == Planted::shuffles_on_both_sides_of_if && i % 2 == 0)
    value += __shfl_xor_sync(0xffffffffU, value, 1);
  else if (kFault == Planted::shuffles_on_both_sides_of_if)
    value -= __shfl_xor_sync(0xffffffffU, value, 1);
  for (int step = kWarp / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(kFault == Planted::half_a_mask ? 0x0000ffffU : 0xffffffffU, value, step);
  if (i % kWarp == 0 && !(kFault == Planted::part_unwritten && warp == 3)) parts[warp] = value;
  if (kFault == Planted::two_barriers && i < 64)
    __syncthreads();
  else if (kFault != Planted::no_barrier)
    __syncthreads();
  float total = 0;
  for (int k = 0; k < kThreads / kWarp; ++k) total += parts[k];
  if (kFault == Planted::barrier_of_warp_alone) {
    if (i % kWarp == 0) parts[warp] = total + static_cast<float>(warp);
    __syncwarp();
    total += parts[(warp + 1) % (kThreads / kWarp)];
  }
  if (kFault == Planted::writes_beyond && i == 255) y[count] = total;
  float* to = y + (kFault == Planted::blocks_write_one_place ? 0 : blockIdx.x * kThreads + threadIdx.x);
  *to = total;
  if (kFault == Planted::reads_result_through_cache) *to += __ldg(to);
}

template <Planted kFault>
int start(const float* x, float* y, int count) {
  const cudaLaunchConfig_t launch{dim3(static_cast<unsigned>(count / kThreads)), dim3(kThreads), nullptr};
  cudaLaunchKernelEx(&launch, faulty<kFault>, x, y, count);
  return cudaGetLastError();
}

}  // namespace

int start_planted(Planted fault, const float* x, float* y, int count) {
  switch (fault) {
#define PLANTED(name) \
  case Planted::name: \
    return start<Planted::name>(x, y, count)
    PLANTED(none);
    PLANTED(ends_before_barrier);
    PLANTED(lane_missing);
    PLANTED(shuffles_on_both_sides_of_if);
    PLANTED(half_a_mask);
    PLANTED(two_barriers);
    PLANTED(part_unwritten);
    PLANTED(no_barrier);
    PLANTED(barrier_of_warp_alone);
    PLANTED(reads_beyond);
    PLANTED(writes_beyond);
    PLANTED(blocks_write_one_place);
    PLANTED(reads_result_through_cache);
    PLANTED(pack_not_aligned);
#undef PLANTED
  }
  return cudaErrorInvalidValue;
}

}  // namespace trainer::kernels::test
