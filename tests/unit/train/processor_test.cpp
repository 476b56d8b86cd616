#include <gtest/gtest.h>
#include <assembly/processor.hpp>

#include <cstdlib>
#include <map>
#include <optional>

namespace trainer::execution {
namespace {

/// The levels of oneDNN and MKL, "USED of BEST", on a processor with these flags.
std::string libraries(const std::set<std::string>& flags, const std::string& vendor = "GenuineIntel") {
  std::string text;
  for (const assembly::Level& level : assembly::levels({"a processor", flags, vendor}))
    if (level.of == "oneDNN" || level.of == "MKL") text += level.used + " of " + level.best + "; ";
  return text;
}

const std::set<std::string> kAvx2{"sse2", "ssse3", "sse4_1", "sse4_2", "avx", "avx2", "fma"};

std::set<std::string> with(std::set<std::string> flags, const std::set<std::string>& more) {
  flags.insert(more.begin(), more.end());
  return flags;
}

/// Without the variables; they are put back for the tests that compute.
class Processors : public ::testing::Test {
 protected:
  Processors() {
    for (auto& [name, value] : before_) {
      if (const char* set = std::getenv(name)) value = set;
      ::unsetenv(name);
    }
  }
  ~Processors() override {
    for (const auto& [name, value] : before_) value ? ::setenv(name, value->c_str(), 1) : ::unsetenv(name);
  }

 private:
  std::map<const char*, std::optional<std::string>> before_{
      {"ONEDNN_MAX_CPU_ISA", {}}, {"DNNL_MAX_CPU_ISA", {}}, {"MKL_ENABLE_INSTRUCTIONS", {}}, {"MKL_CBWR", {}}};
};

TEST_F(Processors, WhatLibrariesUseFollowsTheFlags) {
  EXPECT_EQ(libraries(kAvx2), "AVX2 of AVX2; AVX2 of AVX2; ");
  const auto avx512 = with(kAvx2, {"avx512f", "avx512bw", "avx512dq", "avx512vl"});
  EXPECT_EQ(libraries(avx512), "AVX512_CORE of AVX512_CORE; AVX512 of AVX512; ");
  EXPECT_EQ(libraries(with(avx512, {"avx512_vnni", "avx512_bf16"})),
            "AVX512_CORE_BF16 of AVX512_CORE_BF16; AVX512 of AVX512; ");
  EXPECT_EQ(libraries(avx512, "AuthenticAMD"), "AVX512_CORE of AVX512_CORE; AVX2 of AVX2; ");
  EXPECT_EQ(libraries({}), "") << "no x86";
}

TEST_F(Processors, AVariableHoldsALibraryBackButLiftsNone) {
  const auto avx512 = with(kAvx2, {"avx512f", "avx512bw", "avx512dq", "avx512vl"});
  ::setenv("ONEDNN_MAX_CPU_ISA", "avx2_vnni", 1);
  ::setenv("MKL_ENABLE_INSTRUCTIONS", "AVX2_E1", 1);
  EXPECT_EQ(libraries(avx512), "AVX2 of AVX512_CORE; AVX2 of AVX512; ");
  const assembly::Level onednn = assembly::levels({"", avx512})[2];
  EXPECT_EQ(onednn.variable, "ONEDNN_MAX_CPU_ISA=avx2_vnni");
  EXPECT_EQ(libraries(kAvx2), "AVX2 of AVX2; AVX2 of AVX2; ");
  ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX", 1);
  ::setenv("MKL_ENABLE_INSTRUCTIONS", "no level", 1);
  EXPECT_EQ(libraries(avx512), "AVX512_CORE of AVX512_CORE; AVX512 of AVX512; ");
  ::unsetenv("MKL_ENABLE_INSTRUCTIONS");
  ::setenv("MKL_CBWR", "AVX,STRICT", 1);
  EXPECT_EQ(libraries(kAvx2), "AVX2 of AVX2; AVX of AVX2; ");
}

TEST_F(Processors, EveryNameOfALimitIsKnown) {
  const auto amx = with(kAvx2, {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16",
                                "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"});
  for (const auto& [name, used] : std::map<std::string, std::string>{{"AVX2_VNNI_2", "AVX2"},
                                                                     {"AVX512_CORE_VNNI", "AVX512_CORE_VNNI"},
                                                                     {"avx10_1_512", "AVX512_CORE_FP16"},
                                                                     {"AVX10_1_512_AMX", "AVX512_CORE_AMX"},
                                                                     {"AVX10_1_512_AMX_FP16", "AVX512_CORE_AMX"}}) {
    ::setenv("ONEDNN_MAX_CPU_ISA", name.c_str(), 1);
    EXPECT_EQ(libraries(amx), used + " of AVX512_CORE_AMX; AVX512 of AVX512; ") << name;
  }
  ::unsetenv("ONEDNN_MAX_CPU_ISA");
  for (const auto& [name, used] : std::map<std::string, std::string>{{"COMPATIBLE", "COMPATIBLE"},
                                                                     {"SSE2", "SSE2"},
                                                                     {"SSE3", "SSE2"},
                                                                     {"SSSE3", "SSSE3"},
                                                                     {"SSE4_1", "SSE4_1"},
                                                                     {"SSE4_2", "SSE4_2"},
                                                                     {"AVX512_MIC", "AVX2"},
                                                                     {"AVX512_E1", "AVX512"},
                                                                     {"AUTO", "AVX512"}}) {
    ::setenv("MKL_CBWR", name.c_str(), 1);
    EXPECT_EQ(libraries(amx), "AVX512_CORE_AMX of AVX512_CORE_AMX; " + used + " of AVX512; ") << name;
  }
}

}  // namespace
}  // namespace trainer::execution
