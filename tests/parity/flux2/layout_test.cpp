/// @file The original key layout and shards: the same weights bit for bit, and what wrappers of other programs add.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <trainer/sdk/error.hpp>

#include <flux2/layout.hpp>
#include <weights/model_files.hpp>

#include "fixture.hpp"

namespace trainer::flux2 {
namespace {

std::shared_ptr<WeightSource> open(const std::filesystem::path& path) { return weights::ModelFiles::open(path); }

void expect_same_weights(WeightSource& one, WeightSource& two) {
  ASSERT_EQ(one.names(), two.names());
  for (const std::string& name : one.names()) {
    const at::Tensor tensor = one.read(name);
    EXPECT_EQ(one.find(name)->name, name);
    EXPECT_EQ(one.find(name)->shape, tensor.sizes().vec()) << name;
    EXPECT_TRUE(at::equal(tensor, two.read(name))) << name;
  }
}

class Layout : public ::testing::TestWithParam<std::filesystem::path> {
 protected:
  std::filesystem::path original_ = GetParam() / "model-bfl" / "flux2.safetensors";
  std::filesystem::path sharded_ = GetParam() / "transformer-sharded";
};

TEST_P(Layout, OriginalFileEqualsShards) {
  const auto original = map_weights(open(original_)), sharded = map_weights(open(sharded_));
  expect_same_weights(*original, *sharded);
  const auto diffusers = map_weights(open(GetParam() / "model" / "transformer"));
  for (const std::string& name : diffusers->names())
    EXPECT_TRUE(at::equal(diffusers->read(name).to(at::kBFloat16), sharded->read(name))) << name;
}

TEST_P(Layout, OutputsAreEqual) {
  const Parity parity(GetParam());
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Built sharded = build(sharded_, {.dtype = dtype});
    // Shapes tell all sizes but the RoPE axes and theta: where these are not the published ones, the config is needed.
    const Config& config = sharded.model->config();
    const bool published = config.axes == std::vector<int64_t>(4, config.head_dim / 4) && config.theta == 2000;
    const std::string text = published ? "" : read_json(sharded_ / "config.json").dump();
    const Built original = build(open(original_), text, {.dtype = dtype});
    EXPECT_TRUE(original.model->config() == config) << "sizes from tensors alone, and from config.json";
    EXPECT_TRUE(
        at::equal(run(*original.model, parity.inputs()).velocity, run(*sharded.model, parity.inputs()).velocity));
  }
}

TEST_P(Layout, RowsOfMappedTensors) {
  const auto original = map_weights(open(original_));
  for (const std::string name :
       {"transformer_blocks.0.attn.to_k.weight", "norm_out.linear.weight", "x_embedder.weight"}) {
    const at::Tensor whole = original->read(name);
    const int64_t rows = whole.size(0), half = rows / 2;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, rows}, {1, 3}, {half - 2, half + 3}, {half, rows}})
      EXPECT_TRUE(at::equal(original->read_rows(name, begin, end), whole.slice(0, begin, end)))
          << name << " rows " << begin << " to " << end;
  }
}

/// As other programs save it: a prefix, RMSNorm weights called `weight`, other components in the same file.
TEST_P(Layout, PrefixAndWeightSuffix) {
  const auto plain = map_weights(open(original_));
  const auto changed = MemoryWeights::copy(*open(original_));
  for (std::string name : changed->names()) {
    const std::string from = name;
    if (name.ends_with("_norm.scale")) name.replace(name.size() - 5, 5, "weight");
    changed->rename(from, "model.diffusion_model." + name);
  }
  changed->set("vae.decoder.conv_in.weight", at::zeros({3}));
  const auto mapped = map_weights(changed);
  expect_same_weights(*plain, *mapped);
  EXPECT_EQ(mapped->describe(), "weights.safetensors (original layout, shown under diffusers' names)");
}

TEST_P(Layout, DiffusersNamesPassThrough) {
  const auto file = open(sharded_);
  EXPECT_EQ(map_weights(file), file);
  const auto prefixed = MemoryWeights::copy(*file);
  for (const std::string& name : prefixed->names()) prefixed->rename(name, "model.diffusion_model." + name);
  expect_same_weights(*file, *map_weights(prefixed));
}

TEST_P(Layout, OneTensorInBothLayouts) {
  const auto both = MemoryWeights::copy(*open(original_));
  both->set("x_embedder.weight", both->read("img_in.weight"));
  try {
    map_weights(both);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "MODEL_KEYS");
    EXPECT_STREQ(error.what(),
                 "weights.safetensors: tensors \"img_in.weight\" and \"x_embedder.weight\" are the same one "
                 "(\"x_embedder.weight\") in two layouts; remove one");
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, Layout, ::testing::ValuesIn(parity_directories()), test::DirName{});

}  // namespace
}  // namespace trainer::flux2
