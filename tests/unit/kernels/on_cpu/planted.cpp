#include "planted.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

namespace on_cpu {
namespace {

/// The first thing that is found is enough.
class EndsWhenFound final : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::puts(result.message());
    std::fflush(stdout);
    std::_Exit(EXIT_FAILURE);
  }
};
[[maybe_unused]] const bool kInstalled =
    (::testing::UnitTest::GetInstance()->listeners().Append(new EndsWhenFound), true);

}  // namespace

bool planted(int number) {
  static const char* const chosen = std::getenv("TRAINER_PLANTED");
  static const int on = chosen == nullptr ? 0 : std::atoi(chosen);
  return number == on;
}

}  // namespace on_cpu
