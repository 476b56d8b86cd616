/// @file A stranger's strategy is in the matrix as soon as it is found; a wrong one is caught and named.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <prove/conformance_model.hpp>
#include <prove/plugin_cells.hpp>
#include <support/components.hpp>

#include "subjects.hpp"

namespace trainer::equivalence {
namespace {

namespace fs = std::filesystem;
using prove::Row;

/// A folder with one of the toy strategies, and a loader that searches it besides the program's plugins.
class ToyStrategies : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "trainer_toy_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  plugin::Loader with(const std::string& strategy) {
    for (const char* ending : {".so", ".plugin.toml"})
      fs::copy(fs::path(std::getenv("TRAINER_TEST_TOY_STRATEGIES")) / (strategy + ending), folder_);
    return make_loader({{folder_, "a test"}});
  }
  const plugin::Manifest& manifest(const plugin::Loader& loader, const std::string& name) {
    for (const plugin::Manifest& found : loader.found().manifests)
      if (found.schema.name == name) return found;
    throw std::runtime_error("not found: " + name);
  }
  fs::path folder_;
};

TEST_F(ToyStrategies, APluginAddsItsRowsByItself) {
  plugin::Loader before = make_loader({}), after = with("honest_store");
  const std::size_t own = prove::memory_strategies(before).size();
  const std::vector<std::string> all = prove::memory_strategies(after);
  ASSERT_EQ(all.size(), own + 1);
  const prove::Setting setting{prove::miniature_of(after, "conformance")};
  const std::vector<Row> rows = prove::check_subsets(after, setting, all);
  EXPECT_EQ(rows.size(), std::size_t{2} << own);
  std::size_t with_it = 0, equal = 0;
  for (const Row& row : rows) {
    EXPECT_TRUE(row.passed()) << row.text();
    if (row.subset.find("honest_store") == std::string::npos) continue;
    ++with_it;
    equal += row.verdict == Row::equal;
  }
  EXPECT_EQ(with_it, std::size_t{1} << own);
  EXPECT_GE(equal, 6U) << "alone, with full or selective checkpointing, each with and without fp8";
}

TEST_F(ToyStrategies, AnHonestOnePassesAllCells) {
  plugin::Loader loader = with("honest_store");
  loader.require("memory", "honest_store");
  const prove::PluginCells cells = prove::check_plugin(loader, manifest(loader, "honest_store"), "");
  EXPECT_TRUE(cells.passed());
  const std::size_t subsets = std::size_t{1} << prove::own_strategies(loader).size();
  EXPECT_EQ(cells.rows.size(), 12 * subsets + 6) << "dtypes x trained x micro-batches, and six steps that die";
  for (const Row& row : cells.rows) EXPECT_NE(row.subset.find("honest_store"), std::string::npos) << row.text();
}

TEST_P(ToyStrategies, AWrongOneIsCaughtAndNamed) {
  const std::string name = GetParam();
  plugin::Loader loader = with(name);
  loader.require("memory", name);
  const prove::PluginCells cells = prove::check_plugin(loader, manifest(loader, name), "");
  EXPECT_FALSE(cells.passed());
  bool named = false;
  for (const Row& row : cells.rows) {
    const std::string begin = "FAILED: plugin \"" + name + "\", ";
    EXPECT_TRUE(row.passed() || row.result.starts_with(begin)) << row.text();
    named = named || row.result.starts_with(begin);
  }
  EXPECT_TRUE(named);
}
INSTANTIATE_TEST_SUITE_P(All, ToyStrategies,
                         ::testing::Values("rounding_store", "stale_residency", "counting_policy", "wrong_format"),
                         [](const auto& info) { return std::string(info.param); });

/// A format that is one with itself about weights that are not those of the file.
TEST_F(ToyStrategies, AFormatThatHoldsOtherWeightsIsTooFar) {
  plugin::Loader loader = with("coarse_format");
  loader.require("memory", "coarse_format");
  const prove::PluginCells cells = prove::check_plugin(loader, manifest(loader, "coarse_format"), "");
  EXPECT_FALSE(cells.passed());
  for (const Row& row : cells.rows) {
    if (row.verdict == Row::refused || row.verdict == Row::idle || row.against.starts_with("itself")) continue;
    EXPECT_EQ(row.verdict, Row::differs) << row.text();
    EXPECT_TRUE(row.result.starts_with("TOO FAR: bit-equal")) << row.text();
    EXPECT_FALSE(row.apart.value().within(0.1));
  }
}

/// What its manifest declares is allowed, and not more.
TEST_F(ToyStrategies, DeclaredRoundingIsAllowed) {
  plugin::Loader loader = with("rounded_format");
  loader.require("memory", "rounded_format");
  EXPECT_EQ(prove::tolerance_of(loader, {"rounded_format"}).rounding, 0.02);
  const prove::PluginCells cells = prove::check_plugin(loader, manifest(loader, "rounded_format"), "");
  for (const Row& row : cells.rows) EXPECT_TRUE(row.passed()) << row.text();
  EXPECT_TRUE(cells.passed());
  const prove::Setting setting{prove::miniature_of(loader, "conformance")};
  std::vector<execution::MemoryStack::Named> tight;
  tight.push_back({"rounded_format", loader.registry().memory.at("rounded_format").create(Options()), "", 1e-4});
  execution::MemoryStack stack(std::move(tight), execution::MemoryStack::Promises::checked);
  try {
    prove::run_cell(loader, setting, std::move(stack));
    ADD_FAILURE() << "no error";
  } catch (const PluginError& error) {
    EXPECT_NE(std::string(error.what()).find("away from the product with its own dense()"), std::string::npos)
        << error.what();
  }
}

/// Without the checks of single promises the bits themselves tell.
TEST_F(ToyStrategies, TheComparisonAloneSeesAStaleWeight) {
  plugin::Loader loader = with("stale_residency");
  loader.require("memory", "stale_residency");
  const auto unchecked = [&] {
    std::vector<execution::MemoryStack::Named> both;
    both.push_back({"stale_residency", loader.registry().memory.at("stale_residency").create(Options())});
    both.push_back({"all", std::make_unique<testing::RecomputeAll>()});
    return execution::MemoryStack(std::move(both));
  };
  const prove::Setting setting{prove::miniature_of(loader, "conformance")};
  const auto difference = first_difference(prove::run_cell(loader, setting, unchecked()),
                                           prove::run_cell(loader, setting, prove::stack_of(loader, {})));
  ASSERT_TRUE(difference);
  EXPECT_TRUE(difference->text().starts_with("loss of step 1: ")) << difference->text();
}

}  // namespace
}  // namespace trainer::equivalence
