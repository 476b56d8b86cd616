#include <recipe/compose.hpp>
#include <recipe/locate.hpp>

#include "fixture.hpp"

namespace trainer::recipe {
namespace {

class Locate : public ::testing::Test {
 protected:
  void SetUp() override {
    file_ = ::testing::TempDir() + "locate-" + std::to_string(getpid()) + ".toml";
    std::ofstream(file_) << "[memory]\nstrategies = [\"one\"]\n\n[memory.one]\n  save = [\"cat\"]\n";
  }
  void TearDown() override { std::filesystem::remove(file_); }
  std::string at(const std::string& message, const std::vector<std::string>& overrides = {}) {
    Node root = read_with_bases(file_);
    Problems problems;
    apply_overrides(root, overrides, problems);
    return with_position(message, positions_of(root));
  }
  std::string file_;
};

TEST_F(Locate, TheValueOfAKey) {
  EXPECT_EQ(at("memory.one.save: \"cat\" is no preset"), file_ + ":5:10: memory.one.save: \"cat\" is no preset");
  EXPECT_EQ(at("memory.strategies: \"one\" is idle"), file_ + ":2:14: memory.strategies: \"one\" is idle");
}

TEST_F(Locate, ADefaultIsPlacedAtItsTable) {
  EXPECT_EQ(at("memory.one.blocks: none"), file_ + ":4:1: memory.one.blocks: none");
}

TEST_F(Locate, AnOverrideIsNamed) {
  EXPECT_EQ(at("memory.one.save: no", {"memory.one.save=[\"dog\"]"}),
            "--set memory.one.save=[\"dog\"]: memory.one.save: no");
}

TEST_F(Locate, OtherMessagesStayAsTheyAre) {
  for (const char* text :
       {"", "there is nothing to prove: it is empty", "plugin \"one\", create: no", "nothing.of.it: x",
        "recipe.toml:3:4: memory.one.save: x", "memory: x", ".: x", "memory.: x", "memory.one.save"})
    EXPECT_EQ(at(text), text);
  EXPECT_EQ(with_position("memory.one.save: x", {}), "memory.one.save: x");
}

}  // namespace
}  // namespace trainer::recipe
