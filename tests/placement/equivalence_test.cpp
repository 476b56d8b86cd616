/// @file The equivalence matrix over placements: every model x dtype x what is trained x micro-batches x every subset
/// of this repository's memory strategies, split over 2 and 3 devices, against the same on one device. Not a bit may
/// differ.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <equivalence/subjects.hpp>
#include <support/sim/sim.hpp>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "devices.hpp"

namespace trainer::placement {
namespace {

using equivalence::loader;
using prove::Setting;
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

/// False where two strategies refuse each other.
bool compatible(const std::vector<std::string>& strategies) {
  try {
    prove::stack_of(loader(), strategies);
    return true;
  } catch (const Error&) {
    return false;
  }
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
  int cells = 0;
  for (const std::vector<std::string>& names : subsets(equivalence::own_strategies())) {
    if (!compatible(names)) continue;
    const std::vector<std::string> against = prove::packing(loader(), names);
    if (!bases.contains(against)) bases[against] = run_on(GetParam(), against, 1);
    for (const int devices : {2, 3}) {
      if (devices == 3 && GetParam().subject.name == "toy") continue;  // its miniature has two blocks
      const auto difference = prove::first_difference(run_on(GetParam(), names, devices), bases.at(against));
      const std::string row = "| " + prove::text_of(GetParam()) + ", " + std::to_string(devices) + " devices | " +
                              prove::join(names) + " | " + prove::join(against) + " on one device | ";
      EXPECT_FALSE(difference) << row << difference->text();
      rows() += row + (difference ? "DIFFERS: " + difference->text() : "bit-equal") + " |\n";
      ++cells;
    }
  }
  // Subsets of three strategies, two of them exclusive, over the placements.
  EXPECT_GE(cells, GetParam().subject.name == "toy" ? 6 : 12);
}

std::vector<Setting> settings() {
  init_devices();
  std::vector<Setting> list;
  for (const prove::Subject& subject : equivalence::subjects())
    for (const Setting& setting : equivalence::settings_of(subject))
      if (setting.adapter == "lora") list.push_back(setting);
  return list;
}
INSTANTIATE_TEST_SUITE_P(All, Matrix, ::testing::ValuesIn(settings()), [](const auto& info) {
  std::string name = prove::text_of(info.param);
  std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0; });
  return name;
});

/// One device is the CPU to the bit, so the matrix hangs together with that of the memory strategies.
TEST(Placement, ASimulatedDeviceEqualsTheCpu) {
  init_devices();
  for (const prove::Subject& subject : equivalence::subjects()) {
    Setting setting{subject, at::kBFloat16, prove::Trained::all, 3};
    setting.objective = equivalence::objective_of(subject);
    const Trajectory cpu = prove::run_cell(loader(), setting, prove::stack_of(loader(), {}));
    const auto difference = prove::first_difference(run_on(setting, {}, 1), cpu);
    EXPECT_FALSE(difference) << subject.name << ": " << difference->text();
  }
}

/// A step that dies on one of its stages and is run again: as if nothing had happened.
TEST(Placement, AStepThatDiedIsRepeatedExactly) {
  init_devices();
  Setting setting{equivalence::subjects().front(), at::kFloat, prove::Trained::shared_layers, 3};
  setting.placement = "split";
  setting.devices = {sim::device(0), sim::device(1)};
  for (const std::vector<std::string>& names : {std::vector<std::string>{}, {"full_checkpointing"}})
    for (const prove::Row& row : prove::check_failures(loader(), setting, names))
      EXPECT_EQ(row.verdict, prove::Row::equal) << row.text();
}

}  // namespace
}  // namespace trainer::placement
