/// @file The equivalence matrix over placements: every model x dtype x what is trained x micro-batches x every subset
/// of memory strategies x every placement on 2 and 3 devices, against the same on one device. Not a bit may differ.
/// Quick: a quarter of the settings, each with every subset and placement.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <equivalence/subjects.hpp>
#include <sim/sim.hpp>
#include <support/whole.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "devices.hpp"
#include "matrix.hpp"

namespace trainer::placement {
namespace {

using equivalence::loader;
using prove::Setting;
using prove::Trained;
using prove::Trajectory;

std::string& rows() {
  static std::string text;
  return text;
}

class Matrix : public ::testing::TestWithParam<Setting> {
 protected:
  static void SetUpTestSuite() { init_devices(); }
  static void TearDownTestSuite() {
    if (const char* file = std::getenv("TRAINER_TEST_TABLE"); file != nullptr)
      std::ofstream(file) << "# Equivalence of placements\n\nThree optimiser steps on simulated devices.\n\n"
                          << prove::table_head() << rows();
  }
};

/// The reasons that a cell may be refused for, and "" for one that runs: in this order, as a run meets them.
std::string refusal(const Setting& setting, const Cell& cell) {
  const auto has = [&](const char* name) {
    return std::find(cell.strategies.begin(), cell.strategies.end(), name) != cell.strategies.end();
  };
  if (has("full_checkpointing") && has("selective_checkpointing")) return "both choose what is recomputed";
  if (has("fp8_weight_only") && setting.trained == Trained::all) return "are trained";
  if (cell.place.placement == "single") return "\"single\" takes one device";
  if (setting.subject.component == "toy" && cell.place.devices == 3) return "too few for 3 devices";
  // Where all is trained there is no frozen weight to swap, but for those of the expert that is not trained.
  const bool frozen = setting.trained != Trained::all || setting.subject.component == "experts";
  if (has("block_swap") && frozen) return "is no dense tensor in host memory";
  return {};
}

/// Every cell has a row: it is equal, or a pinned reason says why it is not run.
TEST_P(Matrix, ASplitEqualsOneDevice) {
  std::map<prove::Row::Verdict, std::size_t> counts;
  const std::vector<Cell> cells = cells_of(loader(), GetParam());
  EXPECT_EQ(cells.size(),
            (std::size_t{1} << prove::memory_strategies(loader()).size()) * prove::places(loader()).size());
  for (const Cell& cell : cells) {
    rows() += cell.row.text() + "\n";
    ++counts[cell.row.verdict];
    if (equivalence::expected(GetParam(), cell.row.subset) == prove::Row::idle) {
      EXPECT_EQ(cell.row.verdict, prove::Row::idle) << cell.row.text();
      continue;
    }
    const std::string reason = refusal(GetParam(), cell);
    EXPECT_EQ(cell.row.verdict, reason.empty() ? prove::Row::equal : prove::Row::refused) << cell.row.text();
    EXPECT_NE(cell.row.result.find(reason), std::string::npos) << cell.row.text() << " instead of " << reason;
  }
  EXPECT_EQ(counts[prove::Row::idle], cells.size() / 8) << "a store, and neither of the two that recompute";
  EXPECT_GE(counts[prove::Row::equal], GetParam().trained == Trained::all ? 5U : 10U);
}

std::vector<Setting> settings() {
  init_devices();
  return testing::share_of(equivalence::matrix_settings(testing::whole()));
}
INSTANTIATE_TEST_SUITE_P(All, Matrix, ::testing::ValuesIn(settings()),
                         [](const auto& info) { return equivalence::word_of(info.param); });

/// A swap between arenas of host memory has nothing to do with weights on devices, and says so before the first step.
TEST(Placement, ASwapOfHostMemoryRefusesWeightsOnDevices) {
  init_devices();
  const Setting setting{equivalence::subject_named("conformance"), at::kFloat, Trained::default_targets, 3};
  for (const int devices : {1, 2}) {
    try {
      run_on(loader(), setting, {"block_swap"}, {devices == 1 ? "single" : "split", devices});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()),
                "memory.block_swap: the weight of \"two.0.picture_qkv\" is no dense tensor in host memory");
    }
  }
}

/// One device is the CPU to the bit, so the matrix hangs together with that of the memory strategies.
TEST(Placement, ASimulatedDeviceEqualsTheCpu) {
  init_devices();
  for (const prove::Subject& subject : equivalence::subjects()) {
    Setting setting{subject, at::kBFloat16, Trained::all, 3};
    setting.objective = equivalence::objective_of(subject);
    const Trajectory cpu = prove::run_cell(loader(), setting, prove::stack_of(loader(), {}));
    const auto difference = prove::first_difference(run_on(loader(), setting, {}, {"single", 1}), cpu);
    EXPECT_FALSE(difference) << subject.name << ": " << difference->text();
  }
}

/// A step that dies on one of its stages and is run again: as if nothing had happened.
TEST(Placement, AStepThatDiedIsRepeatedExactly) {
  init_devices();
  Setting setting{equivalence::subject_named("conformance"), at::kFloat, Trained::shared_layers, 3};
  setting.placement = "split";
  setting.devices = {sim::device(0), sim::device(1)};
  for (const std::vector<std::string>& names : {std::vector<std::string>{}, {"full_checkpointing"}})
    for (const prove::Row& row : prove::check_failures(loader(), setting, names))
      EXPECT_EQ(row.verdict, prove::Row::equal) << row.text();
}

}  // namespace
}  // namespace trainer::placement
