/// @file What packing costs in quality: errors of the DiT's output and of LoRA's gradients on the quickstart's model
/// against dense bf16 and fp32. Prints the table of docs/memory-strategies.md.
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <support/parity.hpp>

#include "flux2_model.hpp"

namespace trainer::fp8 {
namespace {

using testing::Result;

struct Row {
  std::string weights;
  at::ScalarType compute;
  /// Relative l2 errors: packed weights, output against fp32 and bf16, LoRA gradients against fp32 and bf16.
  std::array<double, 5> measured;
};

assembly::LoadedModel model_of(const Row& row) {
  testing::Setting setting{.dtype = row.compute};
  if (row.weights.ends_with("w8a8")) {
    setting.packing = row.weights;
    setting.fp8 = testing::options_of("memory", row.weights).values();
  } else if (row.weights != "dense") {
    setting.fp8 = testing::fp8_options({{"granularity", {row.weights}}});
  }
  return testing::open_model(setting);
}

/// Of all layers of the blocks together.
double weight_error(const assembly::LoadedModel& loaded) {
  std::vector<at::Tensor> held, stored;
  for (Block* block : loaded.model->blocks())
    for (const Linear& linear : block->info().linears) {
      held.push_back(linear.state().frozen->dense(at::kFloat).reshape(-1));
      stored.push_back(loaded.source->read(linear.name() + ".weight").to(at::kFloat).reshape(-1));
    }
  return test::l2_error(at::cat(held), at::cat(stored));
}

TEST(Quality, OfOutputAndLoraGradients) {
  const std::array rows{Row{"dense", at::kFloat, {0, 0, 0.0058, 0, 0.0057}},
                        Row{"dense", at::kBFloat16, {0, 0.0058, 0, 0.0057, 0}},
                        Row{"tensor", at::kFloat, {0.0265, 0.0090, 0.0104, 0.0380, 0.0386}},
                        Row{"channel", at::kFloat, {0.0262, 0.0103, 0.0120, 0.0366, 0.0372}},
                        Row{"block", at::kFloat, {0.0254, 0.0095, 0.0109, 0.0384, 0.0383}},
                        Row{"tensor", at::kBFloat16, {0.0265, 0.0110, 0.0107, 0.0380, 0.0381}},
                        Row{"channel", at::kBFloat16, {0.0262, 0.0116, 0.0117, 0.0367, 0.0369}},
                        Row{"block", at::kBFloat16, {0.0254, 0.0112, 0.0109, 0.0393, 0.0387}},
                        Row{"fp8_w8a8", at::kFloat, {0.0262, 0.0141, 0.0152, 0.0406, 0.0409}},
                        Row{"fp8_w8a8", at::kBFloat16, {0.0262, 0.0156, 0.0153, 0.0412, 0.0410}},
                        Row{"int8_w8a8", at::kFloat, {0.0062, 0.0057, 0.0081, 0.0119, 0.0133}},
                        Row{"int8_w8a8", at::kBFloat16, {0.0062, 0.0078, 0.0073, 0.0135, 0.0132}}};
  assembly::LoadedModel fp32_model = model_of(rows[0]), bf16_model = model_of(rows[1]);
  const Result fp32 = testing::run(fp32_model), bf16 = testing::run(bf16_model);
  const at::Tensor fp32_gradients = testing::joined(fp32.gradients), bf16_gradients = testing::joined(bf16.gradients);
  std::printf(
      "| weights | compute | bytes of weights | error of the weights | of the output, against fp32 | against bf16 | of "
      "LoRA's gradients, against fp32 | against bf16 |\n|---|---|---|---|---|---|---|---|\n");
  for (const Row& row : rows) {
    assembly::LoadedModel loaded = model_of(row);
    const Result result = testing::run(loaded);
    const at::Tensor gradients = testing::joined(result.gradients);
    const std::array found{weight_error(loaded), test::l2_error(result.output, fp32.output),
                           test::l2_error(result.output, bf16.output), test::l2_error(gradients, fp32_gradients),
                           test::l2_error(gradients, bf16_gradients)};
    std::printf("| %s | %s | %lld |", row.weights.c_str(), row.compute == at::kFloat ? "fp32" : "bf16",
                static_cast<long long>(loaded.inventory.weight_bytes));
    for (const double error : found) std::printf(" %.4f |", error);
    std::printf("\n");
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_LE(found.at(i), row.measured.at(i) * 1.25) << row.weights << ' ' << row.compute << ' ' << i;
      EXPECT_GE(found.at(i), row.measured.at(i) / 1.25) << row.weights << ' ' << row.compute << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace trainer::fp8
