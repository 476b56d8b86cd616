/// @file Which instructions of the processor are used: the fused kernels, LibTorch's own and the libraries of its
/// matrix products choose for themselves, each with an environment variable that holds it back.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace trainer::assembly {

/// As /proc/cpuinfo has it; empty where there is none.
struct Processor {
  std::string name;
  std::set<std::string> flags;  ///< "avx2", "avx512_bf16", ...
  std::string vendor{};         ///< "GenuineIntel", "AuthenticAMD"
};
Processor this_processor();

struct Level {
  std::string of;        ///< "kernels", "LibTorch", "oneDNN" or "MKL"
  std::string used;      ///< in its own words: "x86-64-v4", "AVX512", "AVX512_CORE_AMX"
  std::string best;      ///< on this processor
  std::string variable;  ///< what holds it below, as "ONEDNN_MAX_CPU_ISA=AVX2"; empty for none
};

/// Of all four, in that order; where the processor is no x86, of the first two. The two libraries tell nobody what they
/// use: theirs is the best of the processor up to what their variable allows.
std::vector<Level> levels(const Processor& processor);

/// The levels that are used, for a checkpoint: results depend on them in the last bit.
std::map<std::string, std::string> levels_record();

/// What makes a run here slow, with the variable to change: a level that is held back, threads that spin while they
/// wait, one thread where there are more processors.
std::vector<std::string> slow_because(const std::vector<Level>& levels);

}  // namespace trainer::assembly
