#include <data/buckets.hpp>

#include "helpers.hpp"

#include <algorithm>

namespace trainer::data {
namespace {

std::string names(const BucketGrid& grid) {
  std::string text;
  for (const Bucket& bucket : grid.buckets()) text += (text.empty() ? "" : " ") + bucket.text();
  return text;
}

TEST(Buckets, AreThoseOfTheAreaWithinTheAspect) {
  EXPECT_EQ(names(BucketGrid({{256}, 16, 1.5})), "208x304 224x288 240x272 256x256 272x240 288x224 304x208");
  EXPECT_EQ(names(BucketGrid({{256}, 64, 4})), "256x256");  // coarse steps: the square only
  EXPECT_EQ(names(BucketGrid({{512}, 64, 2})), "384x640 448x576 512x512 576x448 640x384");
}

TEST(Buckets, HoldWhatTheyPromiseAtManySizes) {
  for (const int64_t side : {128, 512, 768, 1024}) {
    for (const int64_t multiple : {8, 16}) {
      const BucketGrid grid({{side}, multiple, 2.0});
      EXPECT_GE(grid.buckets().size(), 5U);
      for (const Bucket& bucket : grid.buckets()) {
        EXPECT_EQ(bucket.width % multiple + bucket.height % multiple, 0);
        EXPECT_LE(bucket.width * bucket.height, side * side);
        EXPECT_GE(static_cast<double>(bucket.width * bucket.height), 0.85 * static_cast<double>(side * side));
        EXPECT_LE(std::max(bucket.width, bucket.height), 2 * std::min(bucket.width, bucket.height));
        EXPECT_EQ(grid.assign(bucket.width, bucket.height), bucket);
        EXPECT_EQ(grid.assign(3 * bucket.width, 3 * bucket.height), bucket);
      }
    }
  }
}

TEST(Buckets, SmallResolutionsAndExactSizesHaveOneBucket) {
  EXPECT_EQ(names(BucketGrid({{64}, 16, 2})), "64x64");
  EXPECT_EQ(names(BucketGrid({{640, 384}, 16, 2})), "640x384");
  EXPECT_EQ(BucketGrid({{640, 384}, 16, 2}).assign(100, 900), (Bucket{640, 384}));
}

TEST(Buckets, PicturesGoToTheNearestAspect) {
  const BucketGrid grid({{512}, 16, 2.0});
  EXPECT_EQ(grid.assign(4000, 4000), (Bucket{512, 512}));
  EXPECT_EQ(grid.assign(4000, 3000), (Bucket{592, 432}));  // 1.370 for 1.333
  EXPECT_EQ(grid.assign(3000, 4000), (Bucket{432, 592}));
  EXPECT_EQ(grid.assign(10000, 100), grid.assign(20000, 100));  // beyond the widest
  EXPECT_EQ(grid.assign(10000, 100).text(), grid.buckets().back().text());
}

TEST(Buckets, CoverScaleIsThatOfTheTighterSide) {
  EXPECT_DOUBLE_EQ(cover_scale(100, 200, {64, 64}), 0.64);
  EXPECT_DOUBLE_EQ(cover_scale(32, 32, {64, 128}), 4.0);
}

TEST(Buckets, RefuseWrongSizes) {
  const auto refusal = [](const BucketOptions& options) { return message_of([&] { BucketGrid{options}; }); };
  EXPECT_EQ(refusal({{520}, 16, 2}),
            "data: resolution 520 is not a multiple of 16, which this model and autoencoder need");
  EXPECT_EQ(refusal({{512, 0}, 16, 2}),
            "data: resolution 0 is not a multiple of 16, which this model and autoencoder need");
  EXPECT_EQ(refusal({{512}, 16, 0.5}), "data: max_aspect must be at least 1");
  EXPECT_EQ(refusal({{}, 16, 2}), "data: resolution takes one or two numbers");
}

}  // namespace
}  // namespace trainer::data
