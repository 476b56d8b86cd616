/// @file Bits turn over and files are cut in a committed checkpoint: it is never accepted, and the older one is.
#include <gtest/gtest.h>
#include <trainer/sdk/error.hpp>

#include <base/files.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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

  /// Of the bytes `from` to `to`, each `every`-th, and of these each `bits`-th bit.
  struct Bits {
    std::size_t from = 0, to = SIZE_MAX, every = 1;
    int bits = 1;
  };
  /// Turns each of these bits of a file over by itself: the checkpoint is never accepted.
  void turn_bits(const std::string& name, const Bits& which) {
    const std::string whole = read_file(folder_ / name, std::size_t{1} << 22, "file");
    for (std::size_t byte = which.from; byte < std::min(which.to, whole.size()); byte += which.every) {
      for (int bit = static_cast<int>(byte) % which.bits; bit < 8; bit += which.bits) {
        std::string damaged = whole;
        damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << bit));
        EXPECT_FALSE(accepted(name, damaged)) << name << " byte " << byte << " bit " << bit;
      }
    }
    write(name, whole);
  }

  /// Two steps of a small LoRA by the program itself.
  static void train(const fs::path& run) {
    const std::string quoted = "'" + run.string(), recipe = std::getenv("TRAINER_SOURCE_ROOT");
    const std::string command = "LD_LIBRARY_PATH= '" + std::string(std::getenv("TRAINER_PROGRAM")) + "' run '" +
                                recipe + "/tests/e2e/small.toml' --set run.steps=2 --set adapter.rank=1" +
                                " --set run.output=" + quoted + "' --set cache.folder=" + quoted + ".cache' 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }

  Scratch scratch_;
  fs::path folder_;
  int64_t cases_ = 0;
};

TEST_F(Damage, EveryBitOfManifestStateAndHeaderAndManyOfTheData) {
  for (const char* name : {"MANIFEST.json", "state.json", "rank-00000.safetensors"}) {
    turn_bits(name, {.from = 0, .to = 600});
    turn_bits(name, {.from = 600, .every = 7, .bits = 3});
  }
  EXPECT_NO_THROW(checkpoint::load(folder_));
  std::printf("%lld flipped bits, 0 accepted\n", static_cast<long long>(cases_));
}

/// As the program writes it: fingerprints in the manifest, the recipe in the state, a header of many tensors.
TEST_F(Damage, OfACheckpointOfARealRun) {
  train(scratch_.path() / "trained");
  folder_ = scratch_.path() / "trained/ckpt/step-0000000002";
  const checkpoint::Loaded whole = checkpoint::load(folder_);
  EXPECT_GE(whole.manifest.fingerprints.size(), 8U);
  EXPECT_NE(whole.content.state.find("[adapter]"), std::string::npos);
  EXPECT_GT(whole.content.tensors.size(), 20U);
  turn_bits("MANIFEST.json", {});
  turn_bits("state.json", {.bits = 3});
  turn_bits("rank-00000.safetensors", {.to = 600, .bits = 2});
  turn_bits("rank-00000.safetensors", {.from = 600, .every = 101, .bits = 5});
  EXPECT_NO_THROW(checkpoint::load(folder_));
  std::printf("%lld flipped bits of a real run's checkpoint, 0 accepted\n", static_cast<long long>(cases_));
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
