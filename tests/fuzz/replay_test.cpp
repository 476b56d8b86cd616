/// @file The committed inputs of every fuzz target (corpus/TARGET: seeds, and what once crashed), without libFuzzer.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "target.hpp"

namespace trainer::fuzz {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> inputs(const std::string& target) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(FUZZ_CORPUS) / target)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

class Corpus : public ::testing::TestWithParam<Target> {};

TEST_P(Corpus, IsTakenOrRefused) {
  const std::vector<fs::path> files = inputs(GetParam().name);
  ASSERT_GE(files.size(), 3U);
  for (const fs::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    std::fprintf(stderr, "%s\n", file.c_str());  // the last one printed is the one that ended the program
    // In memory of exactly its size: a sanitizer then sees a read beyond the end.
    const std::vector<char> exact(bytes.begin(), bytes.end());
    EXPECT_NO_THROW(run(GetParam().function, {exact.data(), exact.size()})) << file;
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Corpus, ::testing::ValuesIn(targets()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(FuzzTargets, AllAreLinked) { EXPECT_EQ(targets().size(), std::size_t{FUZZ_TARGETS}); }

}  // namespace
}  // namespace trainer::fuzz
