/// @file FLUX.2 files that are in fp8 already: both key layouts, the common scales, and what is refused.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <trainer/sdk/eight_bit_weights.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/weight_scales.hpp>

#include <filesystem>
#include <support/parity.hpp>
#include <weights/model_files.hpp>
#include <weights/write.hpp>

#include "flux2_model.hpp"
#include "numbers.hpp"

namespace trainer::fp8 {
namespace {

using namespace eight_bits;

using testing::fp8_options;
using testing::open_model;
using testing::random_matrix;
using testing::Setting;

/// A folder with a copy of the quickstart's transformer in which the blocks' matrices are fp8.
class Fp8Files : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    std::filesystem::copy_file(testing::quickstart_transformer() / "config.json", folder_ / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// `suffix` of the scale's name; `shaped` gives it the layout's shape. Empty suffix: no scale is written.
  template <typename Shaped>
  void write(Granularity granularity, const std::string& suffix, const Shaped& shaped) {
    const auto files = weights::ModelFiles::open(testing::quickstart_transformer());
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const std::string& name : files->names()) {
      const at::Tensor tensor = files->read(name);
      if (tensor.dim() != 2 || name.find("transformer_blocks.") == std::string::npos) {
        tensors.emplace_back(name, tensor);
        continue;
      }
      const Packed packed = quantize(tensor, granularity, name);
      tensors.emplace_back(name, packed.values);
      if (!suffix.empty()) tensors.emplace_back(name.substr(0, name.size() - 6) + suffix, shaped(packed.scale));
    }
    weights::write_safetensors(folder_ / "model.safetensors", tensors);
  }
  std::string refusal(const Setting& setting) {
    try {
      open_model(setting);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
      return error.code() + " " + error.what();
    }
    return "accepted";
  }
  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / ("fp8_files_" + std::to_string(getpid()));
};

/// Products in e4m3 take the file's weights as they are, with scales of a channel or finer; those in integers would
/// round them twice.
TEST_F(Fp8Files, ProductsIn8Bits) {
  const auto with = [&](const std::string& name) {
    return Setting{.fp8 = testing::options_of("memory", name).values(), .files = folder_, .packing = name};
  };
  for (const Granularity granularity : {Granularity::channel, Granularity::block}) {
    write(granularity, "scale_weight",
          [&](const at::Tensor& scale) { return granularity == Granularity::block ? scale.unsqueeze(2) : scale; });
    assembly::LoadedModel loaded = open_model(with("fp8_w8a8")),
                          expanded = open_model({.fp8 = fp8_options(), .files = folder_});
    const at::Tensor got = testing::run(loaded).output, expected = testing::run(expanded).output;
    EXPECT_LE(test::l2_error(got, expected), 0.03);
    // Blocks of scales lie within the sum of the product: where all inputs are multiples of 64 these are expanded.
    EXPECT_EQ(loaded.inventory.packed_layers, expanded.inventory.packed_layers);
    const std::string text = refusal(with("int8_w8a8"));
    EXPECT_TRUE(text.starts_with("MODEL_SCALES ")) << text;
    EXPECT_NE(text.find("this file is for fp8_w8a8 or fp8_weight_only"), std::string::npos) << text;
  }
}

/// Whatever the strategy's own granularity and exclusions: the file's weights count.
TEST_F(Fp8Files, EqualTheStrategyOnTheOriginal) {
  struct Case {
    Granularity granularity;
    const char* name;
    const char* suffix;
    at::Tensor (*shaped)(const at::Tensor&);
  };
  const auto flat = [](const at::Tensor& scale) { return scale.view(-1); };
  const auto scalar = [](const at::Tensor& scale) { return scale.reshape({}); };
  const auto deep = [](const at::Tensor& scale) { return scale.unsqueeze(2); };
  for (const Case& c : {Case{Granularity::channel, "channel", "weight_scale", flat},
                        Case{Granularity::tensor, "tensor", "weight_scale", scalar},
                        Case{Granularity::block, "block", "scale_weight", deep}}) {
    write(c.granularity, c.suffix, c.shaped);
    const Table options = fp8_options({{"granularity", {std::string(c.name)}}});
    assembly::LoadedModel original = open_model({.fp8 = options});
    const Table other =
        fp8_options({{"granularity", {std::string("tensor")}}, {"exclude", {Array{{std::string("*")}}}}});
    assembly::LoadedModel stored = open_model({.fp8 = other, .files = folder_});
    const testing::Result a = testing::run(original), b = testing::run(stored);
    EXPECT_TRUE(test::same_bits(a.output, b.output)) << c.name;
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_TRUE(test::same_bits(testing::joined(a.gradients), testing::joined(b.gradients))) << c.name;
    // What is excluded here was in the model's dtype in both.
    EXPECT_EQ(original.inventory.weight_bytes, stored.inventory.weight_bytes);
  }
}

TEST_F(Fp8Files, AreNeverReadWithoutTheirScales) {
  write(Granularity::channel, "weight_scale", [](const at::Tensor& scale) { return scale; });
  EXPECT_EQ(refusal({.files = folder_}),
            "MODEL_SCALES " + folder_.string() +
                ": tensor \"transformer_blocks.0.attn.to_q.weight\" is packed, with scales in "
                "\"transformer_blocks.0.attn.to_q.weight_scale\"; frozen layers can use it with memory.strategies = "
                "[\"fp8_weight_only\"]; to train the weight itself, take a file in bf16 or fp32");
  // `check` reads headers only: no format is asked, but one that may know the scales is trusted to.
  const auto files = weights::ModelFiles::open(folder_);
  const auto strategy = testing::make_strategy("fp8_weight_only");
  assembly::BuildOptions headers{.headers_only = true};
  const std::string layer = "transformer_blocks.0.attn.to_q";
  EXPECT_THROW(assembly::SourceBuilder(*files, headers).linear(layer, 192, 192, false), Error);
  headers.format = strategy->weight_format();
  EXPECT_EQ(assembly::SourceBuilder(*files, headers).linear(layer, 192, 192, false).name(), layer);
  headers.trained = true;
  EXPECT_THROW(assembly::SourceBuilder(*files, headers).linear(layer, 192, 192, false), Error);
  // A plain cast has no scales: its numbers are what they are, with the strategy and without.
  write(Granularity::tensor, "", [](const at::Tensor& scale) { return scale; });
  assembly::LoadedModel dense = open_model({.files = folder_}),
                        packed = open_model({.fp8 = fp8_options(), .files = folder_});
  EXPECT_TRUE(test::same_bits(testing::run(dense).output, testing::run(packed).output));
}

/// Scales that belong to no fp8 weight are what any foreign tensor is.
TEST_F(Fp8Files, ScalesOfNothing) {
  const auto files = weights::ModelFiles::open(testing::quickstart_transformer());
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const std::string& name : files->names()) tensors.emplace_back(name, files->read(name));
  tensors.emplace_back("proj_out.weight_scale", at::ones({1}));
  weights::write_safetensors(folder_ / "model.safetensors", tensors);
  const std::string text = refusal({.fp8 = fp8_options(), .files = folder_});
  EXPECT_TRUE(text.starts_with("MODEL_KEYS ")) << text;
  EXPECT_NE(text.find("1 unexpected, which the model would leave out:\n    \"proj_out.weight_scale\" [1]"),
            std::string::npos)
      << text;
}

std::shared_ptr<WeightSource> mapped(const NamedTensors& tensors) {
  testing::built_plugins().require("model", "flux2");
  return testing::built_plugins().registry().models.at("flux2").map_weights(
      std::make_shared<test::MemorySource>(tensors));
}

/// Original layout: scales go where their weights go.
TEST(Fp8Layout, ScalesFollowTheirWeights) {
  const at::Tensor qkv = random_matrix(384, 256).to(at::kFloat8_e4m3fn), rows = random_matrix(384, 1).abs();
  const at::Tensor tiles = at::arange(6, at::kFloat).view({3, 2}), note = at::full({5}, 7, at::kByte);
  const at::Tensor final = random_matrix(8, 4).to(at::kFloat8_e4m3fn), final_rows = at::arange(8, at::kFloat);
  const std::string dit = "model.diffusion_model.", attn = "double_blocks.0.";
  const auto source = mapped({{dit + attn + "img_attn.qkv.weight", qkv},
                              {dit + attn + "img_attn.qkv.weight_scale", rows},
                              {dit + attn + "img_attn.qkv.comfy_quant", note},
                              {dit + attn + "img_attn.qkv.input_scale", at::full({}, 3.0F)},
                              {dit + attn + "txt_attn.qkv.weight", qkv},
                              {dit + attn + "txt_attn.qkv.weight_scale_inv", tiles},
                              {dit + "double_blocks.1.img_attn.qkv.weight", qkv},
                              {dit + "double_blocks.1.img_attn.qkv.scale_weight", at::full({1}, 0.25F)},
                              {dit + "single_blocks.2.linear1.weight", qkv},
                              {dit + "single_blocks.2.linear1.scale_weight", rows},
                              {dit + "final_layer.adaLN_modulation.1.weight", final},
                              {dit + "final_layer.adaLN_modulation.1.weight_scale", final_rows},
                              {dit + "scaled_fp8", at::ones({2}).to(at::kFloat8_e4m3fn)}});
  const auto scale = [&](const std::string& name) { return source->read(name); };
  const std::string block = "transformer_blocks.0.attn.";
  EXPECT_TRUE(test::same_bits(scale(block + "to_q.weight_scale"), rows.slice(0, 0, 128)));
  EXPECT_TRUE(test::same_bits(scale(block + "to_v.weight_scale"), rows.slice(0, 256, 384)));
  EXPECT_EQ(source->find(block + "to_v.weight_scale")->shape, (std::vector<int64_t>{128, 1}));
  EXPECT_TRUE(at::equal(scale(block + "to_k.comfy_quant"), note));
  EXPECT_EQ(scale(block + "to_k.input_scale").item<float>(), 3.0F);
  EXPECT_TRUE(at::equal(scale(block + "add_k_proj.weight_scale_inv"), tiles.slice(0, 1, 2)));
  EXPECT_EQ(scale("transformer_blocks.1.attn.to_v.scale_weight").item<float>(), 0.25F);
  EXPECT_TRUE(test::same_bits(scale("single_transformer_blocks.2.attn.to_qkv_mlp_proj.scale_weight"), rows));
  EXPECT_TRUE(
      at::equal(scale("norm_out.linear.weight_scale"), at::tensor({4.0F, 5.0F, 6.0F, 7.0F, 0.0F, 1.0F, 2.0F, 3.0F})));
  for (const std::string& name : source->names())
    EXPECT_TRUE(name.ends_with(".weight") || is_fp8_companion(*source, name)) << name;
}

/// Scales that cannot be cut as the weight is keep their name, so that the model's check reports them.
TEST(Fp8Layout, ScalesThatDoNotDivide) {
  const std::string qkv = "double_blocks.0.img_attn.qkv.";
  for (const int64_t count : {2, 6, 383})
    EXPECT_NE(mapped({{qkv + "weight", random_matrix(384, 8).to(at::kFloat8_e4m3fn)},
                      {qkv + "weight_scale", at::ones({count})}})
                  ->find(qkv + "weight_scale"),
              nullptr)
        << count;
}

/// A whole file in the original layout, packed by channel and with one scale a fused matrix.
TEST(Fp8Layout, OriginalFile) {
  const auto path = test::parity_dirs().front() / "model-bfl" / "flux2.safetensors";
  const auto file = weights::ModelFiles::open(path);
  for (const Granularity granularity : {Granularity::channel, Granularity::tensor}) {
    NamedTensors packed, expanded;
    for (const std::string& name : file->names()) {
      const at::Tensor tensor = file->read(name);
      packed[name] = expanded[name] = tensor;
      if (tensor.dim() != 2) continue;
      const Packed p = quantize(tensor, granularity, name);
      packed[name] = p.values;
      packed[name + "_scale"] = granularity == Granularity::tensor ? p.scale.reshape({}) : p.scale.view(-1);
      expanded[name] = dequantize(p, at::kFloat);
    }
    const auto source = mapped(packed), reference = mapped(expanded);
    const auto strategy = testing::make_strategy("fp8_weight_only");
    int matrices = 0;
    for (const std::string& name : reference->names()) {
      const at::Tensor expected = reference->read(name);
      if (expected.dim() != 2) continue;
      LinearState layer;
      layer.name = name.substr(0, name.size() - 7);
      layer.out = expected.size(0);
      layer.in = expected.size(1);
      const auto weight = strategy->weight_format()->pack(layer, name, *source, at::kFloat);
      ASSERT_NE(weight, nullptr) << name;
      EXPECT_TRUE(test::same_bits(weight->dense(at::kFloat), expected.contiguous())) << name;
      ++matrices;
    }
    EXPECT_GT(matrices, 20);
  }
}

}  // namespace
}  // namespace trainer::fp8
