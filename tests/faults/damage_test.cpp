/// @file Bits turn over and files are cut in a committed checkpoint: it is never accepted, and the older one is.
#include <gtest/gtest.h>
#include <trainer/sdk/error.hpp>

#include <base/files.hpp>

#include <cstdio>
#include <fstream>

#include "campaign.hpp"

namespace trainer::faults {
namespace {

namespace fs = std::filesystem;

class Damage : public ::testing::Test {
 protected:
  Damage() {
    prepare(scratch_.fresh());
    folder_ = scratch_.path() / "run/ckpt/step-0000000002";
  }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary | std::ios::trunc) << content;
  }

  /// Whether the checkpoint is taken for good with this content of the file.
  bool accepted(const std::string& name, const std::string& content) {
    ++cases_;
    write(name, content);
    try {
      checkpoint::load(folder_);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::bad_input) << error.what();
      return false;
    }
  }

  Scratch scratch_;
  fs::path folder_;
  int64_t cases_ = 0;
};

TEST_F(Damage, EveryBitOfManifestStateAndHeaderAndManyOfTheData) {
  for (const char* name : {"MANIFEST.json", "state.json", "rank-00000.safetensors"}) {
    const std::string whole = read_file(folder_ / name, 1 << 20, "file");
    const std::size_t all = std::min<std::size_t>(whole.size(), 600), stride = 7;  // bytes, then every 7th
    for (std::size_t byte = 0; byte < whole.size(); byte += byte < all ? 1 : stride) {
      for (int bit = 0; bit < 8; bit += byte < all ? 1 : 3) {
        std::string damaged = whole;
        damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << bit));
        EXPECT_FALSE(accepted(name, damaged)) << name << " byte " << byte << " bit " << bit;
      }
    }
    write(name, whole);
  }
  EXPECT_NO_THROW(checkpoint::load(folder_));
  std::printf("%lld flipped bits, 0 accepted\n", static_cast<long long>(cases_));
}

TEST_F(Damage, EveryCut) {
  for (const char* name : {"MANIFEST.json", "state.json", "rank-00000.safetensors"}) {
    const std::string whole = read_file(folder_ / name, 1 << 20, "file");
    for (std::size_t size = 0; size < whole.size(); size += size < 600 ? 1 : 97)
      EXPECT_FALSE(accepted(name, whole.substr(0, size))) << name << " cut to " << size;
    EXPECT_FALSE(accepted(name, whole + "\n")) << name;
    write(name, whole);
  }
  EXPECT_NO_THROW(checkpoint::load(folder_));
}

TEST_F(Damage, TheOlderOneIsTakenAndTheDamagedOneKept) {
  write("state.json", "{}");
  checkpoint::Store store(scratch_.path() / "run", "run");
  std::vector<std::string> notes;
  EXPECT_EQ(store.newest(notes)->manifest.step, 1);
  EXPECT_EQ(notes.size(), 1U);
  EXPECT_TRUE(fs::exists(folder_.string() + ".bad-CKPT_SIZE"));
}

}  // namespace
}  // namespace trainer::faults
