/// @file Kept outputs are given back block by block during backward.
#include <planner/byte_counter.hpp>

#include "chain.hpp"

namespace trainer::test {
namespace {

int64_t bytes_held() { return planner::bytes_in_use(at::kCPU).current; }

/// Moves nothing; reads the bytes after each block's backward, last block first.
class Reader final : public WeightResidency {
 public:
  void plan(std::span<Block* const>) override {}
  void before(const Site&, Pass pass) override {
    if (pass == Pass::backward && live.empty()) live.push_back(bytes_held());
  }
  void after(const Site&, Pass pass) noexcept override {
    if (pass == Pass::backward) live.push_back(bytes_held());
  }
  std::vector<int64_t> live;  ///< first: before any block's backward
};

class KeptBytes : public testing::Test {
 protected:
  static void SetUpTestSuite() { planner::install_byte_counter(); }
  static constexpr int64_t kBlocks = 5, kRows = 64;
  std::vector<int64_t> readings(SavePolicy* save, bool retain) {
    RecomputeState sites;
    BlockRun how = recomputed(&sites);
    how.options.save = save;
    chain_.step(how);  // the first run is verified, which holds on to outputs
    Reader reader;
    how.residency = &reader;
    chain_.loss(how).backward({}, retain);
    chain_.take_grads();
    if (save != nullptr) kept_ = sites.reports.at("toy").kept_bytes;
    return reader.live;
  }
  Chain chain_{{.blocks = kBlocks, .rows = kRows}};
  int64_t kept_ = 0;
};

TEST_F(KeptBytes, StorageLifetimeEndsBlockByBlock) {
  selective::SaveList save({"attention", "toy:frozen_linear#2"});
  const std::vector<int64_t> full = readings(nullptr, false), selective = readings(&save, false);
  EXPECT_EQ(kept_, kRows * 32 * 4 + 2 * kRows * 4 + kRows * 64 * 4);
  ASSERT_EQ(full.size(), static_cast<std::size_t>(kBlocks + 1));
  ASSERT_EQ(selective.size(), full.size());
  for (int64_t done = 0; done <= kBlocks; ++done) {
    const auto i = static_cast<std::size_t>(done);
    EXPECT_EQ(selective[i] - full[i], (kBlocks - done) * kept_) << done;
  }
}

TEST_F(KeptBytes, WhereIsRetainGraphTheyStay) {
  selective::SaveList save({"attention"});
  const std::vector<int64_t> full = readings(nullptr, true), selective = readings(&save, true);
  for (std::size_t i = 0; i < full.size(); ++i) EXPECT_EQ(selective[i] - full[i], kBlocks * kept_) << i;
}

TEST_F(KeptBytes, NothingIsLeftAfterTheStep) {
  selective::SaveList save({"attention", "matmul"});
  const int64_t before = bytes_held();
  RecomputeState sites;
  BlockRun how = keeping(save, &sites);
  how.options.elide = true;
  for (int step = 0; step < 2; ++step) chain_.step(how);
  EXPECT_EQ(bytes_held(), before);
}

}  // namespace
}  // namespace trainer::test
