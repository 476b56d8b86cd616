/// @file Which layers an adapter goes on, and where its first values come from.
#include <gtest/gtest.h>
#include <adapter/inject.hpp>

#include <assembly/model_builder.hpp>
#include <support/components.hpp>
#include <support/parity.hpp>
#include <support/toy_model.hpp>

namespace trainer::adapter {
namespace {

using Names = std::vector<std::string>;

Linear layer(const std::string& name, int64_t in = 5, int64_t out = 7) {
  auto state = std::make_shared<LinearState>();
  state->name = name;
  state->in = in;
  state->out = out;
  return Linear(state);
}

Names names_of(const std::vector<Linear>& layers) {
  Names names;
  for (const Linear& one : layers) names.push_back(one.name());
  return names;
}

/// What a run does not train gets no adapter, whatever the pattern.
TEST(Select, LeavesOutWhatIsSpared) {
  const std::vector<Linear> layers{layer("high.up"), layer("low.up")};
  layers[1].state().spared = true;
  const Names all{"*"}, low{"low.*"};
  EXPECT_EQ(names_of(select(layers, all)), Names{"high.up"});
  EXPECT_THROW(select(layers, low), Error);
}

TEST(Matches, WholeNameOrItsLastParts) {
  EXPECT_TRUE(matches("attn.to_q", "attn.to_q"));
  EXPECT_TRUE(matches("to_q", "blocks.0.attn.to_q"));
  EXPECT_TRUE(matches("attn.to_q", "blocks.0.attn.to_q"));
  EXPECT_FALSE(matches("o_q", "blocks.0.attn.to_q")) << "only whole parts";
  EXPECT_FALSE(matches("attn", "blocks.0.attn.to_q")) << "a part in the middle";
  EXPECT_FALSE(matches("blocks.0", "blocks.0.attn.to_q")) << "first parts";
  EXPECT_FALSE(matches("x.to_q", "to_q"));
  EXPECT_FALSE(matches("", "to_q"));
}

TEST(Matches, Globs) {
  EXPECT_TRUE(matches("*", "anything.at.all"));
  EXPECT_TRUE(matches("blocks.*.to_q", "blocks.12.attn.to_q"));
  EXPECT_TRUE(matches("*to_*", "blocks.0.attn.to_q"));
  EXPECT_TRUE(matches("**", ""));
  EXPECT_TRUE(matches("a*b*c", "a.b.b.c")) << "the star takes more on a mismatch";
  EXPECT_FALSE(matches("a*b*c", "a.b.b.d"));
  EXPECT_FALSE(matches("blocks.*", "single_blocks.0")) << "a glob is not a suffix";
  EXPECT_FALSE(matches("*.to_q", "to_q"));
  EXPECT_FALSE(matches("blocks.*.to_q", "blocks.0.to_q.x"));
}

TEST(Select, KeepsTheOrderOfTheLayersAndEachOnce) {
  const std::vector<Linear> layers{layer("b.0.to_q"), layer("b.0.to_k"), layer("b.1.to_q"), layer("proj")};
  EXPECT_EQ(names_of(select(layers, Names{"proj", "to_q", "b.0.*"})),
            (Names{"b.0.to_q", "b.0.to_k", "b.1.to_q", "proj"}));
  EXPECT_EQ(names_of(select(layers, Names{"to_k"})), Names{"b.0.to_k"});
}

TEST(Select, PatternWithoutALayerIsAnErrorWithNearNames) {
  const std::vector<Linear> layers{layer("b.0.to_q"), layer("b.0.to_k")};
  try {
    (void)select(layers, Names{"to_q", "b.0.to_qq"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
    EXPECT_STREQ(
        error.what(),
        "adapter.targets: \"b.0.to_qq\" matches no linear layer (did you mean \"b.0.to_q\" or \"b.0.to_k\"?); the "
        "model has 2, `trainer inspect` lists them");
  }
}

struct Toy {
  test::MemorySource source{testing::toy_weights({})};
  assembly::SourceBuilder builder{source, {}};
  testing::ToyModel model{builder, {}};
};

/// What a file holds for a layer that is no target would be lost.
TEST(Targeted, TheLayersOfAFile) {
  Toy toy;
  const std::vector<Linear>& all = toy.builder.inventory().linears;
  const Names file{"block.1.up", "head"};
  EXPECT_EQ(names_of(targeted(*testing::lora(), toy.model, all, file)), (Names{"head", "block.1.up"}))
      << "instead of the default ones";
  EXPECT_EQ(names_of(targeted(*testing::lora({{"targets", {Array{{std::string("up")}, {std::string("head")}}}}}),
                              toy.model, all, file)),
            (Names{"head", "block.0.up", "block.1.up"}));
  try {
    (void)targeted(*testing::lora({{"targets", {std::string("all")}}}), toy.model, all, file);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
    EXPECT_STREQ(error.what(),
                 "adapter.targets: 1 of the 2 layers in the file of adapter.path are no target, and what it holds for "
                 "them would be lost: \"head\"; leave targets out to train the file's layers");
  }
}

TEST(Targeted, OwnPatternsDefaultOnesAndAllOfTheBlocks) {
  Toy toy;
  const std::vector<Linear>& all = toy.builder.inventory().linears;
  const auto names = [&](const Value& targets) {
    return names_of(targeted(*testing::lora({{"targets", targets}}), toy.model, all));
  };
  const Names blocks{"block.0.up", "block.0.down", "block.1.up", "block.1.down"};
  EXPECT_EQ(names({std::string("default")}), blocks);
  EXPECT_EQ(names({std::string("all")}), blocks) << "no embedder, no final projection";
  EXPECT_EQ(names({Array{{std::string("up")}, {std::string("head")}}}), (Names{"head", "block.0.up", "block.1.up"}));
  EXPECT_EQ(names({std::string("time")}), Names{"time"});
}

at::Tensor value(const Linear& one, std::size_t index) {
  return one.state().adapter->parameters()[index]->value().detach().clone();
}

TEST(Inject, NamesOrderAndLeaves) {
  std::vector<Linear> layers{layer("one"), layer("two", 3, 4)};
  const std::vector<Parameter*> parameters = inject(*testing::lora(), layers, 1, at::kCPU);
  Names names;
  for (const Parameter* parameter : parameters) {
    names.push_back(parameter->name());
    EXPECT_TRUE(parameter->trainable());
    EXPECT_TRUE(parameter->value().is_leaf());
    EXPECT_EQ(parameter->value().scalar_type(), at::kFloat);
  }
  EXPECT_EQ(names, (Names{"one.lora_A.weight", "one.lora_B.weight", "two.lora_A.weight", "two.lora_B.weight"}));
  EXPECT_EQ(parameters[2]->value().sizes(), (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(parameters[3]->value().sizes(), (std::vector<int64_t>{4, 4}));
}

/// Notes what it is given.
class Noting final : public Adapter {
 public:
  std::unique_ptr<LinearAdapter> attach(const LinearState&, const AttachContext& context) const override {
    devices.push_back(context.device);
    dtypes.push_back(context.dtype);
    EXPECT_EQ(context.uniform(0, 1, {2}).device(), context.device);
    EXPECT_EQ(context.normal(0, 1, {2}).device(), context.device);
    return std::make_unique<None>();
  }
  [[nodiscard]] std::vector<std::string> targets() const override { return {}; }
  [[nodiscard]] NamedTensors export_layer(const LinearState&) const override { return {}; }
  [[nodiscard]] std::string describe() const override { return "notes"; }
  mutable std::vector<at::Device> devices;
  mutable std::vector<at::ScalarType> dtypes;

 private:
  struct None final : LinearAdapter {
    [[nodiscard]] at::Tensor apply(const at::Tensor&, const at::Tensor& y) const override { return y; }
    std::vector<Parameter*> parameters() override { return {}; }
  };
};

TEST(Inject, AnAdapterIsGivenDeviceAndDtypeOfEachLayer) {
  const Noting adapter;
  const std::vector<Linear> layers{layer("one"), layer("two")};
  inject(
      adapter, layers, 1, [](const std::string& name) { return at::Device(name == "one" ? at::kCPU : at::kMeta); },
      at::kBFloat16);
  EXPECT_EQ(adapter.devices, (std::vector<at::Device>{at::kCPU, at::kMeta}));
  EXPECT_EQ(adapter.dtypes, (std::vector<at::ScalarType>{at::kBFloat16, at::kBFloat16}));
  inject(adapter, {layers.data(), 1}, 1, at::kMeta);
  EXPECT_EQ(adapter.devices.back(), at::kMeta);
  EXPECT_EQ(adapter.dtypes.back(), at::kFloat);
}

TEST(Inject, FirstValuesDependOnSeedAndNameAlone) {
  const std::vector<Linear> both{layer("one"), layer("two")}, alone{layer("two")}, other{layer("two")};
  inject(*testing::lora(), both, 5, at::kCPU);
  inject(*testing::lora(), alone, 5, at::kCPU);
  inject(*testing::lora(), other, 6, at::kCPU);
  EXPECT_TRUE(test::same_bits(value(both[1], 0), value(alone[0], 0))) << "which other layers are targeted";
  EXPECT_FALSE(test::same_bits(value(both[0], 0), value(both[1], 0))) << "the name";
  EXPECT_FALSE(test::same_bits(value(alone[0], 0), value(other[0], 0))) << "the seed";
}

}  // namespace
}  // namespace trainer::adapter
