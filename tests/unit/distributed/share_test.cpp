/// @file Which samples of a step are whose, for every number of ranks.
#include <gtest/gtest.h>

#include <distributed/share.hpp>
#include <string>
#include <trainer/sdk/error.hpp>

namespace trainer::distributed {
namespace {

TEST(Share, MicroBatchesAreSharedOut) {
  const Share share = share_of(8, 2, 1, 2);
  EXPECT_EQ(share.micro_batch_size, 2);
  EXPECT_EQ(share.micro_batches, 2);
  EXPECT_EQ(share.first_micro_batch, 2);
  EXPECT_EQ(share.all_micro_batches, 4);
}

TEST(Share, OneRankHasTheWholeBatchAsTheRecipeSays) {
  const Share share = share_of(6, 3, 0, 1);
  EXPECT_EQ(share.micro_batch_size, 3);
  EXPECT_EQ(share.micro_batches, 2);
}

TEST(Share, SamplesAreSharedOutWhereMicroBatchesAreTooFew) {
  EXPECT_EQ(share_of(4, 4, 1, 2).micro_batch_size, 2);
  EXPECT_EQ(share_of(4, 4, 3, 4).micro_batch_size, 1);
  EXPECT_EQ(share_of(4, 4, 3, 4).first_micro_batch, 3);
  EXPECT_EQ(share_of(12, 4, 0, 2).micro_batch_size, 3);  // 6 samples: 4 does not divide them
  EXPECT_EQ(share_of(10, 2, 0, 2).micro_batch_size, 1);  // 5 samples
}

TEST(Share, EverySampleIsTakenOnce) {
  for (int ranks = 1; ranks <= 12; ++ranks)
    for (int64_t batch = ranks; batch <= 24; batch += ranks)
      for (int64_t micro = 1; micro <= batch; ++micro) {
        if (batch % micro != 0) continue;
        int64_t next = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const Share share = share_of(batch, micro, rank, ranks);
          EXPECT_EQ(share.first_micro_batch, next);
          EXPECT_LE(share.micro_batch_size, micro);
          next += share.micro_batches;
          EXPECT_EQ(share.all_micro_batches * share.micro_batch_size, batch);
        }
        EXPECT_EQ(next, share_of(batch, micro, 0, ranks).all_micro_batches);
      }
}

TEST(Share, ARestIsRefusedWithNumbers) {
  try {
    share_of(6, 2, 0, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
    EXPECT_EQ(std::string(error.what()),
              "train.batch_size = 6 cannot be shared out evenly among 4 ranks: set it to 4 or 8, or start 3 ranks");
  }
  try {
    share_of(1, 1, 0, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "train.batch_size = 1 cannot be shared out evenly among 2 ranks: set it to 2, or start 1 rank");
  }
}

}  // namespace
}  // namespace trainer::distributed
