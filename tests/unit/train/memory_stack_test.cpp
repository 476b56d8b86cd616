/// @file Memory strategies combined, and combinations that are refused in one sentence.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <execution/memory_stack.hpp>
#include <support/components.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::execution {
namespace {

/// Fills the places that it is told to.
class Strategy final : public MemoryStrategy, RecomputePolicy, WeightResidency, ActivationStore, WeightFormat {
 public:
  explicit Strategy(std::string places, std::map<std::string, std::string> conflicts = {})
      : places_(std::move(places)), conflicts_(std::move(conflicts)) {}
  WeightFormat* weight_format() override { return has('f') ? this : nullptr; }
  WeightResidency* weight_residency() override { return has('r') ? this : nullptr; }
  ActivationStore* activation_store() override { return has('s') ? this : nullptr; }
  RecomputePolicy* recompute_policy() override { return has('p') ? this : nullptr; }
  [[nodiscard]] std::map<std::string, std::string> conflicts() const override { return conflicts_; }
  CheckpointOptions choose(const Site& site) override { return {.recompute = site.index % 2 == 1}; }
  void plan(std::span<Block* const>) override {}
  void before(const Site&, Pass) override {}
  void after(const Site&, Pass) noexcept override {}
  std::shared_ptr<void> put(const at::Tensor&, const Site&) override { return nullptr; }
  at::Tensor take(const std::shared_ptr<void>&, const Site&) override { return {}; }
  std::unique_ptr<FrozenWeight> pack(const LinearState&, const std::string&, WeightSource&, at::ScalarType) override {
    return nullptr;
  }

 private:
  [[nodiscard]] bool has(char place) const { return places_.find(place) != std::string::npos; }
  std::string places_;
  std::map<std::string, std::string> conflicts_;
};

MemoryStack stack_of(std::vector<std::pair<std::string, std::string>> strategies) {
  std::vector<MemoryStack::Named> named;
  for (auto& [name, places] : strategies) named.push_back({name, std::make_unique<Strategy>(places)});
  return MemoryStack(std::move(named));
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
    return error.what();
  }
  return "no error";
}

struct Nothing final : Block {
  Nothing() : Block("double.0", "double") {}
  std::vector<at::Tensor> forward(const Flow& flow) override { return flow.carried; }
};

TEST(MemoryStack, EmptyRunsEveryBlockPlainly) {
  const MemoryStack stack;
  RecomputeState verified;
  Nothing block;
  const Site site{&block, 3, 5, 1};
  const BlockRun run = stack.run_at(site, &site, &verified);
  EXPECT_FALSE(run.options.recompute);
  EXPECT_EQ(run.store, nullptr);
  EXPECT_EQ(run.residency, nullptr);
  EXPECT_EQ(run.state, &verified);
  EXPECT_EQ(run.site.index, 3);
  EXPECT_EQ(run.site.micro_batch, 1);
  EXPECT_EQ(stack.format(), nullptr);
}

TEST(MemoryStack, PlacesOfSeveralStrategiesCompose) {
  const MemoryStack stack = stack_of({{"fp8", "f"}, {"swap", "r"}, {"disk", "s"}, {"some", "p"}});
  EXPECT_NE(stack.format(), nullptr);
  EXPECT_EQ(stack.format_name(), "fp8");
  EXPECT_EQ(stack.format_identity(), "fp8 ");
  EXPECT_NE(stack.residency(), nullptr);
  Nothing block;
  const Site site{&block, 7, 9, 0}, second{&block, 2, 5, 0}, third{&block, 3, 5, 0};
  const BlockRun even = stack.run_at(site, &second, nullptr), odd = stack.run_at(site, &third, nullptr);
  EXPECT_FALSE(stack.run_at(third, nullptr, nullptr).options.recompute) << "a block that takes no part";
  EXPECT_EQ(odd.site.index, 7) << "for stores and residencies it is one of all blocks";
  EXPECT_FALSE(even.options.recompute);
  EXPECT_TRUE(odd.options.recompute);
  EXPECT_EQ(odd.residency, stack.residency());
  EXPECT_NE(odd.store, nullptr);
}

TEST(MemoryStack, TwoForOnePlaceAreRefused) {
  EXPECT_EQ(error_of([] {
              stack_of({{"one", "p"}, {"two", "fp"}});
            }),
            "memory.strategies: \"one\" and \"two\" both choose what is recomputed; keep one of them");
  EXPECT_EQ(error_of([] {
              stack_of({{"one", "rp"}, {"two", "s"}, {"three", "r"}});
            }),
            "memory.strategies: \"one\" and \"three\" both move weights between memories; keep one of them");
  EXPECT_EQ(error_of([] {
              stack_of({{"one", "s"}, {"two", "s"}});
            }),
            "memory.strategies: \"one\" and \"two\" both store the inputs of blocks; keep one of them");
  EXPECT_EQ(error_of([] {
              stack_of({{"fp8", "f"}, {"nf4", "f"}});
            }),
            "memory.strategies: \"fp8\" and \"nf4\" both pack weights; keep one of them");
}

TEST(MemoryStack, DeclaredConflictsAreRefusedInAnyOrder) {
  for (const bool first : {false, true}) {
    std::vector<MemoryStack::Named> named;
    named.push_back({"swap", std::make_unique<Strategy>("r")});
    named.insert(first ? named.begin() : named.end(),
                 MemoryStack::Named{"nf4", std::make_unique<Strategy>(
                                               "f", std::map<std::string, std::string>{{"swap", "its bytes move"}})});
    EXPECT_EQ(error_of([&] { MemoryStack stack(std::move(named)); }),
              "memory.strategies: \"nf4\" cannot be combined with \"swap\": its bytes move");
  }
}

TEST(MemoryStack, SaysWhichOptionsTheConflictIsAbout) {
  std::vector<MemoryStack::Named> named;
  named.push_back({"fp8", std::make_unique<Strategy>("fr"), "", 0, "keep = \"block\""});
  named.push_back({"swap", std::make_unique<Strategy>("r")});
  EXPECT_EQ(
      error_of([&] { MemoryStack stack(std::move(named)); }),
      "memory.strategies: \"fp8\" (keep = \"block\") and \"swap\" both move weights between memories; keep one of "
      "them, or change what is set in [memory.NAME]");
}

/// The strategies here give back an undefined tensor for each that they were given.
TEST(MemoryStack, PromisesAreCheckedWhereItIsAskedFor) {
  Nothing block;
  const Site site{&block, 0, 1, 0};
  for (const auto promises : {MemoryStack::Promises::trusted, MemoryStack::Promises::checked}) {
    std::vector<MemoryStack::Named> named;
    named.push_back({"disk", std::make_unique<Strategy>("s")});
    const MemoryStack stack(std::move(named), promises);
    std::string message;
    try {
      EXPECT_FALSE(stack.store()->take(stack.store()->put(at::ones({2}), site), site).defined());
    } catch (const PluginError& error) {
      message = error.what();
    }
    const bool refused = message.find("an input of block \"double.0\" came back undefined") != std::string::npos;
    EXPECT_EQ(refused, promises == MemoryStack::Promises::checked) << message;
    EXPECT_EQ(message.find("disk") != std::string::npos, refused) << message;
  }
}

TEST(MemoryStack, PackingAloneLeavesTheOthersOut) {
  MemoryStack stack = stack_of({{"fp8", "fr"}, {"disk", "s"}, {"some", "p"}});
  stack.keep_packing_only();
  EXPECT_NE(stack.format(), nullptr);
  EXPECT_EQ(stack.residency(), nullptr);
  EXPECT_EQ(stack.store(), nullptr);
  EXPECT_FALSE(stack.recomputes());
}

TEST(MemoryStack, SaysWhatDoesNothing) {
  EXPECT_EQ(stack_of({{"fp8", "f"}, {"swap", "r"}}).idle(), "");
  EXPECT_EQ(stack_of({{"disk", "s"}, {"some", "p"}}).idle(), "");
  EXPECT_NE(stack_of({{"disk", "s"}}).idle().find("\"disk\" does nothing here"), std::string::npos);
}

}  // namespace
}  // namespace trainer::execution
