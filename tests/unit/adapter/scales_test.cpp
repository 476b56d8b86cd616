/// @file The strength of a LoRA is what peft applies by its configuration, or the file is refused.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <fstream>
#include <utility>
#include <weights/convert.hpp>
#include <weights/safetensors_writer.hpp>

#include "lora_fixture.hpp"

namespace trainer::adapter {
namespace {

using Scales = LoraFiles;

const std::string kMetadata = "lora_adapter_metadata";
const std::string kLayer = "transformer_blocks.0.attn.to_q", kFused = "double_blocks.0.img_attn.qkv";

NamedTensors pair(const std::string& stem, int64_t rank = 4, int64_t out = 6) {
  return {{stem + ".lora_A.weight", at::ones({rank, 3}, at::kFloat)},
          {stem + ".lora_B.weight", at::ones({out, rank}, at::kFloat)}};
}

/// What peft 0.21.2 gives: LoraConfig(**config), then alpha_pattern.get(get_pattern_key(alpha_pattern, layer),
/// lora_alpha).
TEST_F(Scales, AlphaIsWhatPeftTakes) {
  for (const auto& [config, alpha] : std::vector<std::pair<std::string, double>>{
           {R"({})", 8},
           {R"({"lora_alpha": 10})", 10},
           {R"({"alpha_pattern": {"to_q": 3}})", 3},
           {R"({"alpha_pattern": {"to_k": 3}})", 8},
           {R"({"lora_alpha": 10, "alpha_pattern": {"to_q": 3, "attn.to_q": 5}})", 3},
           {R"({"lora_alpha": 10, "alpha_pattern": {"attn.to_q": 5, "to_q": 3}})", 5},
           {R"({"lora_alpha": 10, "alpha_pattern": {"to.q": 3}})", 3},
           {R"({"lora_alpha": 10, "alpha_pattern": {"attnxto_q": 3}})", 10},
           {R"({"lora_alpha": 10, "alpha_pattern": {"tto_q": 3, "o_q": 4, "0.attn.to_q": 7}})", 7},
           {R"({"lora_alpha": 10, "alpha_pattern": {"transformer.blocks.0.attn.to_q": 3}})", 3},
           {R"({"lora_alpha": 10, "alpha_pattern": {"transformer_blocks.0.attn.to_q": 3}})", 3},
           {R"({"lora_alpha": 10, "alpha_pattern": {".to_q": 3}})", 10},
           {R"({"lora_alpha": 10, "alpha_pattern": {"transformer_blocks.0.attn": 3}})", 10},
           {R"({"lora_alpha": 10, "alpha_pattern": {".transformer_blocks.0.attn.to_q": 3}})", 10},
           {R"({"lora_alpha": 10, "alpha_pattern": {"": 3}})", 10}}) {
    const auto file = raw(pair("transformer." + kLayer), {{kMetadata, config}});
    EXPECT_EQ(read_lora(file, family_).layers.at(0).alpha, alpha) << config;
    std::ofstream(folder_ / "adapter_config.json") << config;
    EXPECT_EQ(read_lora(raw(pair("base_model.model." + kLayer)), family_).layers.at(0).alpha, alpha) << config;
  }
}

TEST_F(Scales, WhereItStandsIsSaid) {
  const auto said = [&](const std::string& config) {
    return read_lora(raw(pair("transformer." + kLayer), {{kMetadata, config}}), family_).alpha;
  };
  EXPECT_EQ(said(R"({"lora_alpha": 10})"), "stated in peft's configuration");
  EXPECT_EQ(said(R"({"r": 4})"), "peft's default: its configuration states none");
  EXPECT_EQ(read_lora(raw(pair("transformer." + kLayer)), family_).alpha, "none stored: readers apply alpha = rank");
}

TEST_F(Scales, PatternsAreLookedForUnderTheNameInTheFileToo) {
  const auto alpha = [&](const std::string& stem, const std::string& config) {
    std::ofstream(folder_ / "adapter_config.json") << config;
    return read_lora(raw(pair(stem)), family_).layers.at(0).alpha;
  };
  const std::string own = R"({"lora_alpha": 10, "alpha_pattern": {")" + kFused + R"(": 3}})";
  EXPECT_EQ(alpha("base_model.model." + kFused, own), 3);
  const std::string longer = R"({"lora_alpha": 10, "alpha_pattern": {"diffusion_model.)" + kFused + R"(": 3}})";
  EXPECT_EQ(alpha("base_model.model.diffusion_model." + kFused, longer), 3);
  EXPECT_EQ(alpha("base_model.model." + kFused, longer), 10);
  const std::string parts = R"({"lora_alpha": 10, "alpha_pattern": {"to_q": 3, "to_k": 3, "to_v": 3}})";
  EXPECT_EQ(alpha("base_model.model." + kFused, parts), 3);
}

TEST_F(Scales, SeveralAlphasForOneLayerAreRefused) {
  const auto refused = [&](const std::string& patterns) {
    const std::string config = R"({"lora_alpha": 10, "alpha_pattern": {)" + patterns + "}}";
    return refusal(raw(pair("diffusion_model." + kFused), {{kMetadata, config}}));
  };
  const std::string text = "LORA_CONFIG: " + (folder_ / "raw.safetensors").string() +
                           ": its lora_adapter_metadata states several alphas for the one layer \"double_blocks.0.";
  for (const char* patterns : {R"("to_q": 3, "to_k": 4, "to_v": 3)", R"("to_q": 3)", R"("img_attn.qkv": 3, "to_k": 4)"})
    EXPECT_TRUE(refused(patterns).starts_with(text)) << refused(patterns);
  for (const char* patterns : {R"("to_out": 3)", R"("to_q": 10)", R"("qkv": 3)", R"("qkv": 3, "to_k": 3)"})
    EXPECT_EQ(refused(patterns), "accepted") << patterns;
}

/// Each layer looks at all patterns: without a limit a file of megabytes would keep a reader busy for hours.
TEST_F(Scales, AConfigurationHasALimitOfKeys) {
  const auto refused = [&](int patterns) {
    std::string config = R"({"alpha_pattern": {"to_q": 4)";
    for (int i = 1; i < patterns; ++i) config += ", \"x" + std::to_string(i) + "\": 1";
    return refusal(raw(pair("transformer." + kLayer), {{kMetadata, config + "}}"}}));
  };
  EXPECT_EQ(refused(19'999), "accepted");
  EXPECT_EQ(refused(20'000), "LORA_CONFIG: " + (folder_ / "raw.safetensors").string() +
                                 ": its lora_adapter_metadata has more than 20000 keys");
}

TEST_F(Scales, ATensorAndAConfigurationThatDifferAreRefused) {
  const auto refused = [&](double tensor, const std::string& config) {
    NamedTensors tensors = pair("transformer." + kLayer);
    tensors["transformer." + kLayer + ".alpha"] = at::full({}, tensor, at::kBFloat16);
    return refusal(raw(tensors, config.empty() ? weights::Metadata() : weights::Metadata{{kMetadata, config}}));
  };
  EXPECT_EQ(refused(2, ""), "accepted");
  EXPECT_EQ(refused(10.1, R"({"lora_alpha": 10.1})"), "accepted") << "rounded to 8 bits";
  for (const double tensor : {2.0, 20.0}) {
    const std::string message = refused(tensor, R"({"lora_alpha": 10})");
    EXPECT_TRUE(message.starts_with("LORA_CONFIG: ")) << message;
    EXPECT_NE(message.find("states the alpha 10 for \"" + kLayer + "\", its tensor in the file " +
                           (tensor < 10 ? "2:" : "20:")),
              std::string::npos)
        << message;
  }
  EXPECT_NE(refused(4, R"({"r": 4})").find("states the alpha 8 for"), std::string::npos);
}

TEST_F(Scales, AFoldedScaleThatLeadsToOtherBitsIsNone) {
  const auto read = [&](const std::string& scale, const std::string& software) {
    weights::Metadata metadata{{"trainer.folded_scale", scale}};
    if (!software.empty()) metadata["software"] = software;
    return read_lora(raw(pair("transformer." + kLayer), metadata), family_);
  };
  EXPECT_EQ(read("0.5", "trainer").layers.at(0).alpha, 2);
  EXPECT_EQ(read("0.5", "trainer").alpha, "folded into B (it was 0.500000 times the rank)");
  for (const char* scale : {"1e-300", "1e-40", "1e300", "1e40"}) {
    const LoraFile file = read(scale, "trainer");
    EXPECT_EQ(file.layers.at(0).alpha, 4) << scale;
    EXPECT_TRUE(weights::all_finite(file.layers.at(0).up)) << scale;
    EXPECT_TRUE(at::equal(file.layers.at(0).up, at::ones({6, 4}, at::kFloat))) << scale;
    EXPECT_EQ(file.alpha, "none stored: readers apply alpha = rank") << scale;
  }
  for (const char* software : {"", "other"}) {
    EXPECT_EQ(read("0.5", software).layers.at(0).alpha, 4) << software;
    EXPECT_EQ(read("x", software).layers.at(0).alpha, 4) << software;
  }
}

}  // namespace
}  // namespace trainer::adapter
