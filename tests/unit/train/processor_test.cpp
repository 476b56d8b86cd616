#include <gtest/gtest.h>
#include <train/assembly/processor.hpp>

#include <cstdlib>
#include <map>
#include <optional>

namespace trainer::train {
namespace {

/// The levels of oneDNN and MKL, "USED of BEST", on a processor with these flags.
std::string libraries(const std::set<std::string>& flags) {
  std::string text;
  for (const Level& level : levels({"a processor", flags}))
    if (level.of == "oneDNN" || level.of == "MKL") text += level.used + " of " + level.best + "; ";
  return text;
}

const std::set<std::string> kAvx2{"sse2", "sse4_1", "sse4_2", "avx", "avx2", "fma"};

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
  EXPECT_EQ(libraries({}), "") << "no x86";
}

TEST_F(Processors, AVariableHoldsALibraryBackButLiftsNone) {
  const auto avx512 = with(kAvx2, {"avx512f", "avx512bw", "avx512dq", "avx512vl"});
  ::setenv("ONEDNN_MAX_CPU_ISA", "avx2_vnni", 1);
  ::setenv("MKL_ENABLE_INSTRUCTIONS", "AVX2_E1", 1);
  EXPECT_EQ(libraries(avx512), "AVX2 of AVX512_CORE; AVX2 of AVX512; ");
  const Level onednn = levels({"", avx512})[2];
  EXPECT_EQ(onednn.variable, "ONEDNN_MAX_CPU_ISA=avx2_vnni");
  EXPECT_EQ(libraries(kAvx2), "AVX2 of AVX2; AVX2 of AVX2; ");
  ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX", 1);
  ::setenv("MKL_ENABLE_INSTRUCTIONS", "no level", 1);
  EXPECT_EQ(libraries(avx512), "AVX512_CORE of AVX512_CORE; AVX512 of AVX512; ");
  ::unsetenv("MKL_ENABLE_INSTRUCTIONS");
  ::setenv("MKL_CBWR", "AVX,STRICT", 1);
  EXPECT_EQ(libraries(kAvx2), "AVX2 of AVX2; AVX of AVX2; ");
}

}  // namespace
}  // namespace trainer::train
