/// @file What packing costs in quality: errors of the DiT's output and of LoRA's gradients on the quickstart's model
/// against dense bf16 and fp32. Prints the table of docs/memory-strategies.md.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <support/parity.hpp>

#include "flux2_model.hpp"

namespace trainer::fp8 {
namespace {

using testing::Result;

struct Row {
  const char* weights;
  at::ScalarType compute;
  /// Relative l2 errors: output against fp32 and bf16, LoRA gradients against fp32 and bf16.
  std::array<double, 4> measured;
};

Result result_of(const Row& row, int64_t& bytes) {
  testing::Setting setting{.dtype = row.compute};
  if (std::string(row.weights) != "dense") setting.fp8 = testing::fp8_options({{"granularity", {std::string(row.weights)}}});
  train::LoadedModel loaded = testing::open_model(setting);
  bytes = loaded.inventory.weight_bytes;
  return testing::run(loaded);
}

TEST(Quality, OfOutputAndLoraGradients) {
  const std::array rows{Row{"dense", at::kFloat, {0, 0, 0, 0}},
                        Row{"dense", at::kBFloat16, {0, 0, 0, 0}},
                        Row{"tensor", at::kFloat, {0, 0, 0, 0}},
                        Row{"channel", at::kFloat, {0, 0, 0, 0}},
                        Row{"block", at::kFloat, {0, 0, 0, 0}},
                        Row{"tensor", at::kBFloat16, {0, 0, 0, 0}},
                        Row{"channel", at::kBFloat16, {0, 0, 0, 0}},
                        Row{"block", at::kBFloat16, {0, 0, 0, 0}}};
  int64_t bytes = 0;
  const Result fp32 = result_of(rows[0], bytes), bf16 = result_of(rows[1], bytes);
  std::printf(
      "| weights | compute | weight bytes | output, against fp32 | against bf16 | LoRA gradients, against fp32 | against "
      "bf16 |\n|---|---|---|---|---|---|---|\n");
  for (const Row& row : rows) {
    const Result result = result_of(row, bytes);
    const at::Tensor gradients = testing::joined(result.gradients);
    const std::array found{
        test::l2_error(result.output, fp32.output), test::l2_error(result.output, bf16.output),
        test::l2_error(gradients, testing::joined(fp32.gradients)), test::l2_error(gradients, testing::joined(bf16.gradients))};
    std::printf("| %s | %s | %lld | %.4f | %.4f | %.4f | %.4f |\n", row.weights,
                row.compute == at::kFloat ? "fp32" : "bf16", static_cast<long long>(bytes), found[0], found[1], found[2],
                found[3]);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_LE(found.at(i), row.measured.at(i) * 1.25) << row.weights << ' ' << row.compute << ' ' << i;
      EXPECT_GE(found.at(i), row.measured.at(i) / 1.25) << row.weights << ' ' << row.compute << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace trainer::fp8
