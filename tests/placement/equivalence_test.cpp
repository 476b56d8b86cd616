/// @file The equivalence matrix over placements: every model x dtype x what is trained x micro-batches x every subset
/// of memory strategies, split over 2 and 3 devices, against the same on one device. Not a bit may differ.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <equivalence/subjects.hpp>
#include <support/sim/sim.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "devices.hpp"

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

Trajectory run_on(Setting setting, const std::vector<std::string>& strategies, int devices) {
  setting.placement = devices == 1 ? "single" : "split";
  setting.devices.clear();
  for (int d = 0; d < devices; ++d) setting.devices.push_back(sim::device(d));
  return prove::run_cell(loader(), setting, prove::stack_of(loader(), strategies));
}

bool has(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// False for what refuses each other, which tests/equivalence pins, and for a store with nothing to store.
bool runs(const Setting& setting, const std::vector<std::string>& names) {
  const bool full = has(names, "full_checkpointing"), selective = has(names, "selective_checkpointing");
  if (full && selective) return false;
  if (has(names, "host_offload") && !full && !selective) return false;
  return !has(names, "fp8_weight_only") || setting.trained != Trained::all;
}

/// Those of this repository in every setting; host_offload of tests/out_of_tree where samples come in several
/// micro-batches and weights in fp32. (block_swap knows host memory only, see below.)
std::vector<std::string> strategies_for(const Setting& setting) {
  std::vector<std::string> names = equivalence::own_strategies();
  if (setting.micro_batches > 1 && setting.dtype == at::kFloat) names.push_back("host_offload");
  return names;
}

std::vector<std::vector<std::string>> subsets(const std::vector<std::string>& all) {
  std::vector<std::vector<std::string>> list(std::size_t{1} << all.size());
  for (std::size_t bits = 0; bits < list.size(); ++bits)
    for (std::size_t i = 0; i < all.size(); ++i)
      if ((bits >> i & 1U) != 0) list[bits].push_back(all[i]);
  return list;
}

TEST_P(Matrix, ASplitEqualsOneDevice) {
  std::map<std::vector<std::string>, Trajectory> bases;  // by the strategies that pack weights
  const auto base = [&](const std::vector<std::string>& packing) -> const Trajectory& {
    if (!bases.contains(packing)) bases[packing] = run_on(GetParam(), packing, 1);
    return bases.at(packing);
  };
  for (const std::vector<std::string>& names : subsets(strategies_for(GetParam()))) {
    if (!runs(GetParam(), names)) continue;
    const std::vector<std::string> against = prove::packing(loader(), names);
    for (const int devices : {2, 3}) {
      if (devices == 3 && GetParam().subject.name == "toy") continue;  // its miniature has two blocks
      Setting placed = GetParam();
      placed.devices.assign(static_cast<std::size_t>(devices), at::kCPU);  // for the row's text
      const prove::Row row = prove::compare_cells(
          placed, prove::join(names), prove::join(against) + " on one device",
          [&] { return run_on(GetParam(), names, devices); }, [&] { return base(against); });
      EXPECT_EQ(row.verdict, prove::Row::equal) << row.text();
      rows() += row.text() + "\n";
    }
  }
}

std::vector<Setting> settings() {
  init_devices();
  std::vector<Setting> list;
  for (const prove::Subject& subject : equivalence::subjects())
    for (const Setting& setting : equivalence::settings_of(subject))
      if (setting.adapter == "lora" || setting.micro_batches > 1) list.push_back(setting);
  return list;
}
INSTANTIATE_TEST_SUITE_P(All, Matrix, ::testing::ValuesIn(settings()), [](const auto& info) {
  std::string name = prove::text_of(info.param);
  std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0; });
  return name;
});

/// A swap between arenas of host memory has nothing to do with weights on devices, and says so before the first step.
TEST(Placement, ASwapOfHostMemoryRefusesWeightsOnDevices) {
  init_devices();
  const Setting setting{equivalence::subjects().front(), at::kFloat, Trained::default_targets, 3};
  for (const int devices : {1, 2}) {
    try {
      run_on(setting, {"block_swap"}, devices);
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
    const auto difference = prove::first_difference(run_on(setting, {}, 1), cpu);
    EXPECT_FALSE(difference) << subject.name << ": " << difference->text();
  }
}

/// A step that dies on one of its stages and is run again: as if nothing had happened.
TEST(Placement, AStepThatDiedIsRepeatedExactly) {
  init_devices();
  Setting setting{equivalence::subjects().front(), at::kFloat, Trained::shared_layers, 3};
  setting.placement = "split";
  setting.devices = {sim::device(0), sim::device(1)};
  for (const std::vector<std::string>& names : {std::vector<std::string>{}, {"full_checkpointing"}})
    for (const prove::Row& row : prove::check_failures(loader(), setting, names))
      EXPECT_EQ(row.verdict, prove::Row::equal) << row.text();
}

}  // namespace
}  // namespace trainer::placement
