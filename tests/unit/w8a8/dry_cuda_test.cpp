/// @file What products of 8-bit numbers are planned to allocate on CUDA: rows in 8 bits with their scales, weights
/// turned over for the input's gradient, sums where they pass through memory, results; and no fp32 copy of the rows.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <planner/byte_counter.hpp>
#include <planner/shape_kernels.hpp>
#include <trainer/sdk/dry_devices.hpp>
#include <trainer/sdk/ops/fused.hpp>
#include <w8a8/w8a8_weight.hpp>

#include "../fp8_weight_only/numbers.hpp"

namespace trainer::w8a8 {
namespace {

constexpr int64_t kDryRows = 200, kDryIn = 1024, kDryOut = 2048;
const at::Device kDry(at::kMeta, 7);
const std::vector<bool> kCuda{false, false, false, false, false, false, false, true};

class OnDryCuda : public ::testing::Test {
 protected:
  OnDryCuda() {
    planner::install_byte_counter();
    planner::install_shape_kernels();
  }

  static at::Tensor data(int64_t rows, int64_t width) {
    return at::empty({rows, width}, at::TensorOptions(at::kBFloat16).device(kDry));
  }
  static W8A8Weight weight(Code code) {
    W8A8Weight made(eight_bits::quantize(fp8::testing::random_matrix(kDryOut, kDryIn, 2),
                                         eight_bits::Granularity::channel, "weight", code));
    made.to(kDry);
    return made;
  }
  template <typename Run>
  static int64_t bytes(const Run& run) {
    const planner::PeakMark mark(kDry);
    run();
    return mark.above();
  }

 private:
  DryDevices cuda_{kCuda};
};

/// Scales of rows and columns, and what one is: a few numbers a row or a column.
constexpr int64_t kSmall = 32 * (kDryRows + kDryIn + kDryOut);

TEST_F(OnDryCuda, ProductsAllocateWhatTheyDoThere) {
  for (const Code code : {Code::e4m3, Code::int8}) {
    const W8A8Weight frozen = weight(code);
    const at::Tensor x = data(kDryRows, kDryIn), g = data(kDryRows, kDryOut);
    const int64_t sum = code == Code::int8 ? 4 : 0;
    const int64_t forward = bytes([&] { static_cast<void>(frozen.matmul(x)); }),
                  backward = bytes([&] { static_cast<void>(frozen.grad_input(g)); });
    const int64_t expected = kDryRows * kDryIn + kDryRows * kDryOut * (2 + sum),
                  expected_back = kDryRows * kDryOut + kDryIn * kDryOut + kDryRows * kDryIn * (2 + sum);
    EXPECT_GE(forward, expected);
    EXPECT_LE(forward, expected + kSmall);
    EXPECT_GE(backward, expected_back);
    EXPECT_LE(backward, expected_back + kSmall);
  }
}

TEST_F(OnDryCuda, FewRowsAreFilledUp) {
  const W8A8Weight frozen = weight(Code::e4m3);
  const at::Tensor x = data(3, kDryIn);
  EXPECT_GE(bytes([&] {
              EXPECT_EQ(frozen.matmul(x).sizes(), at::IntArrayRef({3, kDryOut}));
            }),
            32 * (kDryIn + 2 * kDryOut));
}

TEST_F(OnDryCuda, TheCpusPathIsAnother) {
  const W8A8Weight frozen = weight(Code::int8);
  const at::Tensor x = data(kDryRows, kDryIn);
  const int64_t there = bytes([&] { static_cast<void>(frozen.matmul(x)); });
  const auto now = [&] { return bytes([&] { static_cast<void>(frozen.matmul(x)); }); };
  {
    const DryDevices of_another({true});
    EXPECT_GT(now(), there + kDryRows * kDryIn);
  }
  EXPECT_EQ(now(), there) << "as before";
}

TEST_F(OnDryCuda, AnAdaptersPartsAreCounted) {
  constexpr int64_t kRank = 16, kSlots = 3;
  const auto wide = at::TensorOptions(at::kFloat).device(kDry);
  const at::Tensor x = data(kDryRows, kDryIn), y = data(kDryRows, kDryOut), a = at::empty({kRank, kDryIn}, wide),
                   b = at::empty({kDryOut, kRank}, wide);
  const int64_t kept = kDryRows * kRank * 4 + kDryRows * kDryOut * 2;  // x A^T and the result
  EXPECT_EQ(bytes([&] { low_rank_sum(x, y, a, b, 1); }), kept + kSlots * 2 * kRank * (kDryRows + kDryOut));
}

}  // namespace
}  // namespace trainer::w8a8
