/// @file Gradients in buckets: what is summed, in which order, and what of it is not finite.
#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <distributed/buckets.hpp>

namespace trainer::distributed {
namespace {

std::vector<at::Tensor> tensors(const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<at::Tensor> made;
  double begin = 0;
  for (const auto& shape : shapes) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    made.push_back(at::arange(begin, begin + static_cast<double>(count), at::kFloat).view(shape));
    begin += static_cast<double>(count);
  }
  return made;
}

TEST(Buckets, KeepTheOrderAndTheLimit) {
  const auto list = tensors({{2, 3}, {4}, {1}, {20}, {3}});
  const std::vector<Bucket> buckets = buckets_of(list, 10);
  ASSERT_EQ(buckets.size(), 4U);
  const std::vector<std::pair<std::size_t, std::size_t>> expected{{0, 2}, {2, 3}, {3, 4}, {4, 5}};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(std::pair(buckets[i].first, buckets[i].end), expected[i]);
  EXPECT_TRUE(buckets_of({}).empty());
}

TEST(Buckets, PackAndUnpack) {
  const auto list = tensors({{2, 3}, {4}, {}});
  const Bucket all{0, 3};
  const at::Tensor flat = packed(list, all);
  EXPECT_TRUE(at::equal(flat, at::arange(0, 11, at::kFloat)));
  const auto other = std::vector<at::Tensor>{at::zeros({3, 2}).t(), at::zeros({4}), at::zeros({})};
  unpack(flat, other, all);
  for (std::size_t i = 0; i < list.size(); ++i) EXPECT_TRUE(at::equal(other[i], list[i])) << i;
}

}  // namespace
}  // namespace trainer::distributed
