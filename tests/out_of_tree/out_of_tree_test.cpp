/// @file A plugin from outside the tree: built against the uninstalled SDK alone, loaded by the Loader, trained a step.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <plugin/loader.hpp>
#include <train/keyed_random.hpp>
#include <train/model_builder.hpp>
#include <trainer/sdk/recompute.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <support/parity.hpp>

namespace trainer {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string quoted(const std::string& text) { return "'" + text + "'"; }

/// The stranger's build folder; removed at the end.
class OutOfTree : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "trainer_stranger_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  /// Runs a command with nothing of ours but the .pc file's folder.
  void run(const std::string& command) const {
    const std::string log = (folder_ / "log.txt").string();
    const std::string whole =
        "env -u LD_LIBRARY_PATH PKG_CONFIG_PATH=" + quoted(variable("TRAINER_TEST_BUILD") + "/meson-uninstalled") +
        " " + command + " > " + quoted(log) + " 2>&1";
    const int status = std::system(whole.c_str());
    std::ifstream text(log);
    ASSERT_EQ(status, 0) << whole << "\n" << std::string(std::istreambuf_iterator<char>(text), {});
  }
  fs::path folder_;
};

at::Tensor numbers(uint64_t key, at::IntArrayRef shape) {
  return train::keyed_normal(KeyedRng(1, RngStream::noise, 0, key), shape) * 0.3;
}

NamedTensors weights() {
  NamedTensors tensors{{"embed.weight", numbers(1, {8, 3})},
                       {"embed.bias", numbers(2, {8})},
                       {"time_embed.weight", numbers(3, {8, 8})},
                       {"modulation.weight", numbers(4, {24, 8})},
                       {"out.weight", numbers(5, {3, 8})}};
  for (uint64_t i = 0; i < 2; ++i) {
    const std::string block = "blocks." + std::to_string(i);
    tensors[block + ".up.weight"] = numbers(10 * i + 6, {16, 8});
    tensors[block + ".down.weight"] = numbers(10 * i + 7, {8, 16});
    tensors[block + ".scale"] = at::ones({8});
  }
  return tensors;
}

/// Gradients of all parameters after one forward and backward.
std::vector<at::Tensor> gradients(plugin::Loader& loader, bool recompute) {
  test::MemorySource source(weights());
  train::BuildOptions options;
  options.trained = true;
  train::SourceBuilder builder(source, options);
  const Options none;
  const auto model = loader.registry().models.at("toy").create(ModelContext{none, source, "", builder});
  EXPECT_EQ(model->describe(), "a toy of 2 blocks");
  Flow flow = model->prologue({{"latents", numbers(50, {2, 3, 1, 4, 5})}, {"timestep", at::ones({2}) * 0.25}});
  VerifiedSites sites;
  for (Block* block : model->blocks()) {
    BlockRun run;
    run.options.recompute = recompute;
    run.verified = &sites;
    flow.carried = run_block(*block, flow, run);
  }
  const at::Tensor velocity = model->epilogue(flow);
  EXPECT_EQ(velocity.sizes(), (std::vector<int64_t>{2, 3, 1, 4, 5}));
  velocity.pow(2).mean().backward();
  std::vector<at::Tensor> list;
  for (Parameter* parameter : train::trained_parameters(builder.inventory())) list.push_back(parameter->value().grad());
  return list;
}

TEST_F(OutOfTree, BuildsAgainstThePcFileAndTrains) {
  const std::string build = (folder_ / "build").string(), meson = quoted(variable("TRAINER_TEST_MESON"));
  ASSERT_NO_FATAL_FAILURE(run(meson + " setup " + quoted(build) + " " + quoted(variable("TRAINER_TEST_STRANGER"))));
  ASSERT_NO_FATAL_FAILURE(run(meson + " compile -C " + quoted(build)));

  plugin::Loader loader({{build, "the stranger's build"}});
  EXPECT_TRUE(loader.found().problems.empty());
  loader.require("model", "toy");
  EXPECT_EQ(loader.registry().names(), std::vector<std::string>{"model toy"});

  const std::vector<at::Tensor> plain = gradients(loader, false), recomputed = gradients(loader, true);
  ASSERT_EQ(plain.size(), 11U) << "5 linear layers' weights and biases, 2 blocks of 3";
  ASSERT_EQ(recomputed.size(), plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_GT(plain[i].abs().max().item<float>(), 0) << i;
    EXPECT_TRUE(test::same_bits(plain[i], recomputed[i])) << i;
  }
}

}  // namespace
}  // namespace trainer
