// Parts of fp32 numbers for tensor cores, which multiply bf16. The parts of what is not finite are zero but for the
// first.
#include <kernels/cuda/device.cuh>
#include <kernels/cuda/launches.hpp>

namespace trainer::kernels {
namespace {

__global__ void split(const Bf16Parts a) {
  const int64_t units = a.rows * a.width, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < units; i += step) {
    float rest = __fmul_rn(a.factor, a.x[i]);  // a fused multiply-subtract below would be of another number
    Bf16 parts[Bf16Parts::kSlots];
#pragma unroll
    for (Bf16& part : parts) {
      write(&part, rest);
      const float taken = read(&part);
      rest = taken - taken == 0 ? rest - taken : 0.0F;
    }
    Bf16* y = static_cast<Bf16*>(a.y) + i / a.width * a.row_step + i % a.width;
#pragma unroll
    for (int slot = 0; slot < Bf16Parts::kSlots; ++slot)
      y[slot * a.slot_step] = a.order[slot] == 0 ? parts[0] : a.order[slot] == 1 ? parts[1] : parts[2];
  }
}

}  // namespace

int cuda_bf16_parts(const Bf16Parts* a, Stream stream) {
  const int64_t units = a->rows * a->width;
  if (units <= 0) return 0;
  run(split, blocks_for((units + kThreads - 1) / kThreads), stream, *a);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace trainer::kernels
