/// @file Updates inside backward give what updates after it give, to the bit: every model, dtype, choice of trained
/// tensors and subset of memory strategies.
#include <gtest/gtest.h>
#include <trainer/sdk/error.hpp>

#include "subjects.hpp"

namespace trainer::equivalence {
namespace {

void compare_under_every_subset(prove::Setting setting) {
  setting.max_grad_norm = 0;
  prove::Setting fused = setting;
  fused.fused_backward = true;
  const std::vector<std::string> all = prove::memory_strategies(loader());
  std::size_t compared = 0;
  for (std::size_t bits = 0; bits < std::size_t{1} << all.size(); ++bits) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < all.size(); ++i)
      if ((bits >> i & 1U) != 0) names.push_back(all[i]);
    try {
      const prove::Trajectory after = prove::run_cell(loader(), setting, prove::stack_of(loader(), names));
      const prove::Trajectory inside = prove::run_cell(loader(), fused, prove::stack_of(loader(), names));
      const auto differs = prove::first_difference(inside, after);
      EXPECT_FALSE(differs) << prove::text_of(setting) << ' ' << prove::join(names) << ": " << differs->text();
      ++compared;
    } catch (const Error& error) {  // two strategies that want one place
      EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe) << error.what();
    }
  }
  EXPECT_GT(compared, all.size());
}

TEST(FusedBackward, EqualsTheUpdateAfterBackwardUnderEveryStrategy) {
  for (const prove::Subject& subject : subjects())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const prove::Trained trained : {prove::Trained::default_targets, prove::Trained::all})
        compare_under_every_subset(
            {.subject = subject, .dtype = dtype, .trained = trained, .objective = objective_of(subject)});
}

}  // namespace
}  // namespace trainer::equivalence
