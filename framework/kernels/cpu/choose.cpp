/// @file See cpu.hpp.
#include <kernels/cpu.hpp>

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

}  // namespace trainer::kernels
