/// @file See cpu.hpp.
#include <kernels/cpu.hpp>
#include <kernels/cpu/attention_buffers.hpp>

namespace trainer::kernels {

extern const CpuKernels kBaseline;
#ifdef TRAINER_X86_LEVELS
extern const CpuKernels kLevel3;
extern const CpuKernels kLevel4;

namespace {

bool has_level3() { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0; }
bool has_level4() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

}  // namespace
#endif

const std::vector<const CpuKernels*>& cpu_levels() {
  static const std::vector<const CpuKernels*> levels = [] {
    std::vector<const CpuKernels*> list{&kBaseline};
#ifdef TRAINER_X86_LEVELS
    if (has_level3()) list.push_back(&kLevel3);
    if (has_level4()) list.push_back(&kLevel4);
#endif
    return list;
  }();
  return levels;
}

const CpuKernels& cpu_kernels() {
  static const CpuKernels& best = *cpu_levels().back();
  return best;
}

int64_t attention_units(const Attention& a) { return units_of(a); }
int64_t attention_bytes(const Attention& a) {
  return a.dtype == Dtype::f32 ? ForwardBuffers<float>(a, Carve(nullptr)).bytes
                               : ForwardBuffers<uint16_t>(a, Carve(nullptr)).bytes;
}
int64_t attention_grad_bytes(const Attention& a) {
  return a.dtype == Dtype::f32 ? BackwardBuffers<float>(a, Carve(nullptr)).bytes
                               : BackwardBuffers<uint16_t>(a, Carve(nullptr)).bytes;
}

}  // namespace trainer::kernels
