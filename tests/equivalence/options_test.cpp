/// @file The equivalence matrix with options that are not the defaults: a few settings for each, since the full product
/// would take hours.
#include <gtest/gtest.h>

#include <cstdio>

#include "subjects.hpp"

namespace trainer::equivalence {
namespace {

using prove::Row;
using prove::Setting;
using prove::Trained;

struct Case {
  const char* name;
  std::vector<std::string> strategies;
  prove::Changes changes;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

Value list(const char* text) { return Value{Array{Value{std::string(text)}}}; }
Value text(const char* word) { return Value{std::string(word)}; }

const std::vector<Case>& cases() {
  static const std::string full = "full_checkpointing", selective = "selective_checkpointing", fp8 = "fp8_weight_only";
  static const std::vector<Case> all{
      {"KeepEverySecondMatmul", {selective}, {{selective, {{"save", list("every_second_matmul")}}}}},
      {"KeepMatmul", {selective}, {{selective, {{"save", list("matmul")}}}}},
      {"EverySecondBlock", {selective}, {{selective, {{"blocks", text("every 2")}}}}},
      {"SelectiveWithoutElision", {selective}, {{selective, {{"elide", Value{false}}}}}},
      {"FullWithoutElision", {full}, {{full, {{"elide", Value{false}}}}}},
      {"Fp8Block", {fp8}, {{fp8, {{"granularity", text("block")}}}}},
      {"Fp8Tensor", {fp8}, {{fp8, {{"granularity", text("tensor")}}}}},
      {"Fp8BlockRecomputed", {fp8, full}, {{fp8, {{"granularity", text("block")}}}}},
      {"Fp8TensorRecomputed", {fp8, selective}, {{fp8, {{"granularity", text("tensor")}}}}},
      {"Fp8KeepRecomputed", {fp8, full}, {{fp8, {{"keep", text("block")}}}}},
      {"Fp8KeepSelective",
       {fp8, selective},
       {{fp8, {{"keep", text("block")}}}, {selective, {{"save", list("every_second_matmul")}}}}},
      {"MatmulWithSwapAndOffload",
       {"block_swap", "host_offload", selective},
       {{selective, {{"save", list("matmul")}, {"elide", Value{false}}}}}},
  };
  return all;
}

class NotTheDefaults : public ::testing::TestWithParam<Case> {};

TEST_P(NotTheDefaults, EqualThePlainRun) {
  const auto& [name, strategies, changes] = GetParam();
  std::size_t cells = 0;
  for (const prove::Subject& subject : subjects())
    for (const auto& [dtype, trained, micro_batches] :
         {std::tuple{at::kFloat, Trained::default_targets, int64_t{3}}, {at::kBFloat16, Trained::shared_layers, 1}}) {
      Setting setting{subject, dtype, trained, micro_batches};
      setting.objective = objective_of(subject);
      const Row row = prove::SubsetCheck(loader(), setting, changes).check(strategies);
      EXPECT_EQ(row.verdict, Row::equal) << row.text();
      std::printf("%s\n", row.text().c_str());
      ++cells;
    }
  EXPECT_EQ(cells, 2 * subjects().size());
}
/// A setting without effect is no proof: fp8 keeps between the recompute and the backward of a block.
TEST(NotTheDefaultsAlone, WhatHasNoEffectIsRefused) {
  const Setting setting{subject_named("conformance"), at::kFloat, Trained::default_targets, 3};
  const Row row = prove::SubsetCheck(loader(), setting, {{"fp8_weight_only", {{"keep", text("block")}}}})
                      .check({"fp8_weight_only"});
  EXPECT_EQ(row.verdict, Row::refused) << row.text();
  EXPECT_NE(row.result.find("no block is recomputed"), std::string::npos) << row.text();
}

INSTANTIATE_TEST_SUITE_P(All, NotTheDefaults, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace trainer::equivalence
