/// @file Updates inside backward give what updates after it give, to the bit: every model, dtype, choice of trained
/// tensors and subset of memory strategies. Quick: for each model and dtype one choice of what is trained, in turns.
#include <gtest/gtest.h>
#include <support/whole.hpp>

#include "subjects.hpp"

namespace trainer::equivalence {
namespace {

/// Not by expected(): two strategies that want one place, and packed weights that are trained.
bool refusal(const prove::Setting& setting, const std::string& subset) {
  const auto has = [&](const char* name) { return subset.find(name) != std::string::npos; };
  if (has("full_checkpointing") && has("selective_checkpointing")) return true;
  return has("fp8_weight_only") && setting.trained == prove::Trained::all;
}

void compare_under_every_subset(prove::Setting setting) {
  setting.max_grad_norm = 0;
  prove::Setting fused = setting;
  fused.fused_backward = true;
  const std::vector<std::string> all = prove::memory_strategies(loader());
  std::size_t refused = 0;
  for (const std::vector<std::string>& names : subsets(all)) {
    const auto run = [&](const prove::Setting& one) {
      return prove::run_cell(loader(), one, prove::stack_of(loader(), names));
    };
    const prove::Row row = prove::compare_cells(
        setting, prove::join(names), "updates after backward", [&] { return run(fused); }, [&] { return run(setting); },
        /*may_refuse=*/true);
    // A store with nothing to store is run here: it changes nothing.
    const bool refuses = refusal(setting, row.subset);
    EXPECT_EQ(row.verdict, refuses ? prove::Row::refused : prove::Row::equal) << row.text();
    refused += row.verdict == prove::Row::refused;
  }
  // Two policies: a quarter of all. Where all is trained, half of the rest packs what is trained.
  const std::size_t count = std::size_t{1} << all.size();
  EXPECT_EQ(refused, setting.trained == prove::Trained::all ? count / 4 + count * 3 / 8 : count / 4);
}

TEST(FusedBackward, EqualsTheUpdateAfterBackwardUnderEveryStrategy) {
  for (std::size_t i = 0; i < subjects().size(); ++i)
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const prove::Trained trained : {prove::Trained::default_targets, prove::Trained::all}) {
        const bool turn = ((trained == prove::Trained::all) == (dtype == at::kFloat)) == (i % 2 == 0);
        const prove::Subject& subject = subjects()[i];
        if (testing::whole() || turn)
          compare_under_every_subset(
              {.subject = subject, .dtype = dtype, .trained = trained, .objective = objective_of(subject)});
      }
}

}  // namespace
}  // namespace trainer::equivalence
