#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <unistd.h>
#include <assembly/processor.hpp>
#include <kernels/cpu.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <span>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

namespace trainer::assembly {
namespace {

/// An instruction set that a library dispatches to, and what it needs beside what those before it need.
struct Isa {
  std::string_view name;
  std::initializer_list<const char*> flags;
};

const std::array<Isa, 3> kLibTorch{
    {{"DEFAULT", {}}, {"AVX2", {"avx2", "fma"}}, {"AVX512", {"avx512f", "avx512vl", "avx512bw", "avx512dq"}}}};
const std::array<Isa, 9> kOneDnn{{{"SSE41", {"sse4_1"}},
                                  {"AVX", {"avx"}},
                                  {"AVX2", {"avx2", "fma"}},
                                  {"AVX512_CORE", {"avx512f", "avx512vl", "avx512bw", "avx512dq"}},
                                  {"AVX512_CORE_VNNI", {"avx512_vnni"}},
                                  {"AVX512_CORE_BF16", {"avx512_bf16"}},
                                  {"AVX512_CORE_FP16", {"avx512_fp16"}},
                                  {"AVX512_CORE_AMX", {"amx_tile", "amx_int8", "amx_bf16"}},
                                  {"AVX512_CORE_AMX_FP16", {"amx_fp16"}}}};
const std::array<Isa, 8> kMkl{{{"COMPATIBLE", {}},
                               {"SSE2", {"sse2"}},
                               {"SSSE3", {"ssse3"}},
                               {"SSE4_1", {"sse4_1"}},
                               {"SSE4_2", {"sse4_2"}},
                               {"AVX", {"avx"}},
                               {"AVX2", {"avx2", "fma"}},
                               {"AVX512", {"avx512f", "avx512bw"}}}};

/// Other names that the libraries take. AVX2_VNNI and AVX2_E1 add a little on processors without AVX-512.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kAliases{
    {{"AVX2_VNNI", "AVX2"},
     {"AVX2_VNNI_2", "AVX2"},
     {"AVX10_1_512", "AVX512_CORE_FP16"},
     {"AVX10_1_512_AMX", "AVX512_CORE_AMX"},
     {"AVX10_1_512_AMX_FP16", "AVX512_CORE_AMX_FP16"},
     {"AVX2_E1", "AVX2"},
     {"SSE3", "SSE2"},
     {"AVX512_MIC", "AVX2"},
     {"AVX512_MIC_E1", "AVX2"}}};

/// MKL's own: AVX2 where the processor is not Intel's (docs/adr/0008-matrix-products-of-fp32.md).
std::span<const Isa> isas_of_mkl(const Processor& processor) {
  return std::span(kMkl).first(processor.vendor == "GenuineIntel" ? kMkl.size() : kMkl.size() - 1);
}

std::string_view best_of(std::span<const Isa> isas, const Processor& processor) {
  std::string_view best = isas.front().name;
  for (const Isa& isa : isas) {
    if (!std::all_of(isa.flags.begin(), isa.flags.end(), [&](const char* f) { return processor.flags.contains(f); }))
      break;
    best = isa.name;
  }
  return best;
}

/// The variable that is set, of several that mean the same, as "NAME=value".
std::string setting_of(std::initializer_list<const char*> variables) {
  for (const char* variable : variables)
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0')
      return std::string(variable) + "=" + value;
  return {};
}

/// The level of a library that tells nobody: the best, up to the limit that its variable sets. What it does not know is
/// taken for no limit, as it does.
Level limited_level(std::string of, std::span<const Isa> isas, const Processor& processor, const std::string& setting) {
  Level level{std::move(of), "", std::string(best_of(isas, processor)), ""};
  std::string limit = setting.substr(setting.find('=') + 1);
  limit = limit.substr(0, limit.find(','));  // MKL_CBWR=AVX2,STRICT
  std::transform(limit.begin(), limit.end(), limit.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const auto& [alias, name] : kAliases)
    if (limit == alias) limit = name;
  level.used = level.best;
  for (const Isa& isa : isas) {
    if (isa.name == level.best) return level;
    if (isa.name != limit) continue;
    level.used = limit;
    level.variable = setting;
    return level;
  }
  return level;
}

/// A level that the program can ask for.
Level reported_level(std::string of, std::string used, std::string best, const char* variable) {
  Level level{std::move(of), std::move(used), std::move(best), ""};
  if (level.used != level.best) level.variable = setting_of({variable});
  return level;
}

/// How long libgomp's threads spin before they sleep, in rounds; its defaults are of version 12.
double rounds_of_spinning() {
  constexpr double kDefault = 3e5, kForever = 3e10;
  const auto lower = [](char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); };
  if (const char* count = std::getenv("GOMP_SPINCOUNT"); count != nullptr) {
    char* end = nullptr;
    const double rounds = std::strtod(count, &end);
    if (rounds > kForever) return kForever;  // "INFINITY"
    while (*end == ' ') ++end;
    const std::size_t unit = std::string_view("kmgt").find(*end == '\0' ? ' ' : lower(*end));
    if (end != count)
      return unit == std::string_view::npos ? rounds : rounds * std::array{1e3, 1e6, 1e9, 1e12}.at(unit);
  }
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  if (policy == nullptr) return kDefault;
  return lower(*policy) == 'a' ? kForever : 0;
}

/// Why there is one thread only; empty where there are more, or is one processor.
std::string one_thread_because() {
  const int64_t machine = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (at::get_num_threads() > 1 || machine < 2) return {};
  std::string why = setting_of({"OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS"});
  if (std::thread::hardware_concurrency() < 2) why = "this process may use one of them (taskset, a container)";
  return "one thread on a machine with " + std::to_string(machine) + " processors" +
         (why.empty() ? "" : ", since " + why);
}

}  // namespace

Processor this_processor() {
  Processor processor;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {  // the first of them
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::istringstream text(line.substr(colon + 1));
    if (line.starts_with("vendor_id")) text >> processor.vendor;
    if (line.starts_with("model name")) std::getline(text >> std::ws, processor.name);
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    for (std::string flag; text >> flag;) processor.flags.insert(flag);
  }
  return processor;
}

std::vector<Level> levels(const Processor& processor) {
  const std::string torch = at::get_cpu_capability();
  const bool x86 = processor.flags.contains("sse2");
  Level fused =
      reported_level("kernels", kernels::cpu_kernels().level, kernels::cpu_levels().back()->level, "TRAINER_CPU_LEVEL");
  if (!x86) return {std::move(fused), {"LibTorch", torch, torch, ""}};
  return {
      std::move(fused),
      reported_level("LibTorch", torch, std::string(best_of(kLibTorch, processor)), "ATEN_CPU_CAPABILITY"),
      limited_level("oneDNN", kOneDnn, processor, setting_of({"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"})),
      limited_level("MKL", isas_of_mkl(processor), processor, setting_of({"MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"})),
  };
}

std::map<std::string, std::string> levels_record() {
  std::map<std::string, std::string> record;
  for (const Level& level : levels(this_processor())) {
    const bool library = level.of == "oneDNN" || level.of == "MKL";
    std::string& text = record[library ? "products" : level.of == "LibTorch" ? "processor" : "kernels"];
    if (library) text += (text.empty() ? "" : ", ") + level.of + " ";
    text += level.used;
  }
  return record;
}

std::vector<std::string> slow_because(const std::vector<Level>& levels) {
  constexpr double kMuchSpinning = 1e5;
  std::vector<std::string> reasons;
  for (const Level& level : levels)
    if (level.used != level.best)
      reasons.push_back(level.of + " use" + (level.of == "kernels" ? " " : "s ") + level.used +
                        ", below this processor's " + level.best +
                        (level.variable.empty() ? "" : ": unset " + level.variable));
  if (at::get_num_threads() > 1 && rounds_of_spinning() > kMuchSpinning) {
    const std::string setting = setting_of({"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"});
    reasons.push_back("threads spin while they wait, which slows them where other programs run" +
                      (setting.empty() ? "" : ": unset " + setting));
  }
  if (std::string why = one_thread_because(); !why.empty()) reasons.push_back(std::move(why));
  return reasons;
}

}  // namespace trainer::assembly
