#include <gtest/gtest.h>
#include <base/device_error.hpp>
#include <base/files.hpp>
#include <trainer/sdk/error.hpp>

#include <cstdlib>
#include <regex>
#include <set>
#include <string>

namespace trainer {
namespace {

/// "NUMBER name" of every match of a pattern with the groups (1) and (2), in the order `number`, `name`.
std::set<std::string> pairs(const std::string& text, const std::regex& pattern, int number, int name) {
  std::set<std::string> out;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) {
    out.insert((*it)[static_cast<std::size_t>(number)].str() + " " + (*it)[static_cast<std::size_t>(name)].str());
  }
  return out;
}

TEST(ExitCodes, TheTableHasEveryCode) {
  const char* root = std::getenv("TRAINER_SOURCE_ROOT");
  ASSERT_NE(root, nullptr);
  const std::filesystem::path source = root;
  std::string header = read_file(source / "framework/sdk/include/trainer/sdk/error.hpp", 1 << 20, "header");
  header = header.substr(header.find("enum class ExitCode"));
  header = header.substr(0, header.find("};"));
  const std::string table = read_file(source / "docs/exit-codes.md", 1 << 20, "table");
  const auto declared = pairs(header, std::regex(R"((\w+) = (\d+),)"), 2, 1);
  EXPECT_EQ(declared.size(), 16U);
  EXPECT_EQ(pairs(table, std::regex(R"(\n\| (\d+) \| `(\w+)`)"), 1, 2), declared);
}

TEST(ExitCodes, OfDeviceErrors) {
  for (const int lost : {46, 214, 700, 719}) {
    EXPECT_EQ(exit_code_of_device_error(lost), ExitCode::device_lost) << lost;
    EXPECT_NE(std::string(advice_for(exit_code_of_device_error(lost))), "");
  }
  EXPECT_TRUE(
      says_out_of_memory("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: "
                         "you tried to allocate 9 "
                         "bytes. Error code 12 (Cannot allocate memory)"));
  EXPECT_FALSE(says_out_of_memory("expected a tensor of 9 bytes"));
  EXPECT_EQ(exit_code_of_device_error(2), ExitCode::out_of_memory);
  EXPECT_EQ(exit_code_of_device_error(1), ExitCode::failed) << "an invalid value is a defect of ours";
  EXPECT_STREQ(advice_for(ExitCode::failed), "");
}

}  // namespace
}  // namespace trainer
