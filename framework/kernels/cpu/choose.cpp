/// @file See cpu.hpp.
#include <kernels/cpu.hpp>
#include <kernels/cpu/attention_buffers.hpp>
#include <kernels/cpu/product_buffers.hpp>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace trainer::kernels {

extern const CpuKernels kBaseline;
#ifdef TRAINER_X86_LEVELS
extern const CpuKernels kLevel3;
extern const CpuKernels kLevel4;

namespace {

/// All that the compiler may use there (meson.build: -march), as far as it can be asked for.
bool has_level3() {
  bool has = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
             __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0;
#ifndef __clang__  // version 14 knows none of these names
  has = has && __builtin_cpu_supports("f16c") != 0 && __builtin_cpu_supports("lzcnt") != 0 &&
        __builtin_cpu_supports("movbe") != 0;
#endif
  return has;
}
bool has_level4() {
  return has_level3() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512cd") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
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
  return a.dtype == Dtype::f32 || a.widened ? ForwardBuffers<float>(a, Carve(nullptr)).bytes
                                            : ForwardBuffers<uint16_t>(a, Carve(nullptr)).bytes;
}
int64_t attention_grad_bytes(const Attention& a) {
  return a.dtype == Dtype::f32 || a.widened ? BackwardBuffers<float>(a, Carve(nullptr)).bytes
                                            : BackwardBuffers<uint16_t>(a, Carve(nullptr)).bytes;
}

void cut(Product& p, int64_t threads) {
  // With few terms whole rows of c are written at once; with more, the panel of columns stays in the second cache.
  const int64_t columns = p.k <= kFewTerms ? 1024 : 256;
  p.tile_rows = std::min<int64_t>(6 * kBlockRows, std::max<int64_t>(1, p.m));
  p.tile_columns = std::min(columns, parts_of(std::max<int64_t>(1, p.n), kStrip) * kStrip);
  while (threads > 1 && product_units(p) < 4 * threads) {
    if (p.tile_rows > kBlockRows)
      p.tile_rows = parts_of(p.tile_rows, 2 * kBlockRows) * kBlockRows;
    else if (p.tile_columns > 2 * kStrip)
      p.tile_columns = parts_of(p.tile_columns, 2 * kStrip) * kStrip;
    else
      return;
  }
}
int64_t product_units(const Product& p) {
  return p.batches * parts_of(p.m, p.tile_rows) * parts_of(p.n, p.tile_columns);
}
int64_t product_bytes(const Product& p) {
  return p.type == Dtype::f64 ? ProductBuffers<double>(p, Carve(nullptr)).bytes
                              : ProductBuffers<float>(p, Carve(nullptr)).bytes;
}

}  // namespace trainer::kernels
