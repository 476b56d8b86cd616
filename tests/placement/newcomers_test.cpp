/// @file A plugin of any kind adds its rows to the matrix by being found, and a model that nothing can train fails.
/// (A memory strategy: tests/equivalence/toy_strategies_test.cpp.)
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "devices.hpp"
#include "matrix.hpp"

namespace trainer::placement {
namespace {

namespace fs = std::filesystem;
using prove::Row;
using prove::Setting;

class Newcomers : public ::testing::Test {
 protected:
  void SetUp() override {
    init_devices();
    std::string name = ::testing::TempDir() + "trainer_newcomers_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  plugin::Loader with(const std::vector<std::string>& files) {
    for (const std::string& file : files)
      fs::copy(fs::path(std::getenv("TRAINER_TEST_TOY_STRATEGIES")) / file, folder_);
    return equivalence::make_loader({{folder_, "a test"}});
  }
  fs::path folder_;
};

std::vector<std::string> added(const std::vector<std::string>& after, const std::vector<std::string>& before) {
  std::vector<std::string> fresh;
  std::set_difference(after.begin(), after.end(), before.begin(), before.end(), std::back_inserter(fresh));
  return fresh;
}

using Names = std::vector<std::string>;

TEST_F(Newcomers, AddTheirRowsByThemselves) {
  plugin::Loader before = equivalence::make_loader({});
  plugin::Loader after = with({"newcomer.so", "newcomer.plugin.toml", "shift.plugin.toml", "lopsided.plugin.toml"});
  for (const auto& [kind, name] : {std::pair{"model", "newcomer"}, {"adapter", "shift"}, {"placement", "lopsided"}})
    EXPECT_EQ(added(prove::components(after, kind), prove::components(before, kind)), Names{name}) << kind;

  const equivalence::Models models = equivalence::models_of(after);
  EXPECT_EQ(models.missing, Names{});
  const auto subject = std::find_if(models.subjects.begin(), models.subjects.end(),
                                    [](const prove::Subject& one) { return one.name == "newcomer"; });
  ASSERT_NE(subject, models.subjects.end());
  EXPECT_EQ(models.subjects.size(), equivalence::models_of(before).subjects.size() + 1);
  // Three adapters on two choices of layers, and all parameters: x two dtypes x two micro-batches.
  const std::vector<Setting> settings = prove::settings_of(after, *subject);
  EXPECT_EQ(settings.size(), 4 * (3 * 2 + 1));
  EXPECT_EQ(prove::places(after).size(), prove::places(before).size() + 2);

  const auto shifted = std::find_if(settings.begin(), settings.end(), [](const Setting& one) {
    return one.adapter == "shift" && one.micro_batches == 3 && one.dtype == at::kFloat;
  });
  ASSERT_NE(shifted, settings.end());
  std::map<Row::Verdict, std::size_t> counts;
  for (const Cell& cell : cells_of(after, *shifted, "lopsided")) {
    EXPECT_TRUE(cell.row.passed()) << cell.row.text();
    EXPECT_NE(cell.row.text().find("newcomer | fp32 | shift, default targets | 3, lopsided over "), std::string::npos);
    ++counts[cell.row.verdict];
  }
  EXPECT_EQ(counts[Row::equal], 12U) << "two counts of devices; without an attention to keep selective refuses";
  EXPECT_EQ(counts[Row::idle] + counts[Row::refused], 52U);
}

TEST_F(Newcomers, AModelWithoutASubjectIsToldByName) {
  plugin::Loader loader = with({"bare.so", "bare.plugin.toml"});
  const equivalence::Models models = equivalence::models_of(loader);
  ASSERT_EQ(models.missing.size(), 1U);
  EXPECT_EQ(models.missing[0].find("model bare has no subject: the model \"bare\" offers no miniature of itself"), 0U)
      << models.missing[0];
}

}  // namespace
}  // namespace trainer::placement
