/// @file See cpu.hpp.
#include <kernels/cpu.hpp>
#include <kernels/cpu/attention_buffers.hpp>

#include <cstdlib>
#include <stdexcept>
#include <string>

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

const CpuKernels& cpu_level(std::string_view name) {
  if (name.empty()) return *cpu_levels().back();
  std::string choices;
  for (const CpuKernels* level : cpu_levels()) {
    if (name == level->level) return *level;
    choices += (choices.empty() ? "" : ", ") + std::string(level->level);
  }
  throw std::invalid_argument("TRAINER_CPU_LEVEL is \"" + std::string(name) + "\", but this processor has " + choices +
                              "; unset it for the best, or name one of these");
}

const CpuKernels& cpu_kernels() {
  static const CpuKernels& chosen = []() -> const CpuKernels& {
    const char* const name = std::getenv("TRAINER_CPU_LEVEL");
    return cpu_level(name == nullptr ? "" : name);
  }();
  return chosen;
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
