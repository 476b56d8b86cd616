// Test programs that link this compute fp32 products as the program does by default on this machine.
#include <gtest/gtest.h>
#include <matmul/matmul.hpp>

namespace {

class AsTheProgram final : public testing::Environment {
  void SetUp() override { trainer::matmul::use(trainer::matmul::suited()); }
};

[[maybe_unused]] const testing::Environment* const kEnvironment = testing::AddGlobalTestEnvironment(new AsTheProgram);

}  // namespace
