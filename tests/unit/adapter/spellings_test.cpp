/// @file What other programs write: spellings of keys, where alpha stands, metadata; and files that are refused.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <trainer/sdk/error.hpp>
#include <weights/safetensors_writer.hpp>
#include <weights/tensor_file.hpp>

#include "lora_fixture.hpp"

namespace trainer::adapter {
namespace {

using Spellings = LoraFiles;

at::Tensor ones(int64_t rows, int64_t columns) { return at::ones({rows, columns}, at::kFloat); }

TEST_F(Spellings, EveryProgramsNamesMeanTheSameLayer) {
  const std::string layer = "transformer_blocks.0.attn.to_out.0";
  for (const auto& [stem, down, up] : std::vector<std::array<std::string, 3>>{
           {"transformer." + layer, ".lora_A.weight", ".lora_B.weight"},
           {layer, ".lora_A.default.weight", ".lora_B.default.weight"},
           {layer, ".lora_down.weight", ".lora_up.weight"},
           {"diffusion_model." + layer, ".lora_A.weight", ".lora_B.weight"},
           {"diffusion_model.double_blocks.0.img_attn.proj", ".lora_A.weight", ".lora_B.weight"},
           {"diffusion_model.double_blocks.0.img_attn.proj", ".lora_down.weight", ".lora_up.weight"},
           {"lora_unet_double_blocks_0_img_attn_proj", ".lora_down.weight", ".lora_up.weight"},
           {"lora_transformer_transformer_blocks_0_attn_to_out_0", ".lora_down.weight", ".lora_up.weight"},
           {"lycoris_transformer_blocks_0_attn_to_out_0", ".lora_down.weight", ".lora_up.weight"}}) {
    const LoraFile read = read_lora(raw({{stem + down, ones(2, 3)}, {stem + up, ones(5, 2)}}), family_);
    ASSERT_EQ(read.layers.size(), 1U) << stem;
    EXPECT_EQ(read.layers[0].layer, layer) << stem;
    EXPECT_EQ(read.layers[0].alpha, 2) << stem;
  }
}

TEST_F(Spellings, AlphaFromWhereItStands) {
  const std::string a = "transformer_blocks.0.attn.to_q", b = "transformer_blocks.1.attn.to_q";
  const auto pairs = [&](const std::string& prefix) {
    return NamedTensors{{prefix + a + ".lora_A.weight", ones(4, 3)},
                        {prefix + a + ".lora_B.weight", ones(5, 4)},
                        {prefix + b + ".lora_A.weight", ones(4, 3)},
                        {prefix + b + ".lora_B.weight", ones(5, 4)}};
  };
  const auto alphas = [&](const std::filesystem::path& file) {
    const LoraFile read = read_lora(file, family_);
    return std::pair(read.layers.at(0).alpha, read.layers.at(1).alpha);
  };
  EXPECT_EQ(alphas(raw(pairs("transformer."))), std::pair(4.0, 4.0));
  const std::string key = "lora_adapter_metadata";
  EXPECT_EQ(alphas(raw(pairs("transformer."), {{key, R"({"transformer.lora_alpha": 10})"}})), std::pair(10.0, 10.0));
  EXPECT_EQ(alphas(raw(pairs("transformer."), {{key, R"({"transformer.lora_alpha": 10, "transformer.alpha_pattern":
                                 {"transformer_blocks.1.attn.to_q": 3}})"}})),
            std::pair(10.0, 3.0));
  EXPECT_EQ(
      alphas(raw(pairs("transformer."), {{key, R"({"transformer.lora_alpha": 10, "transformer.use_rslora": true})"}})),
      std::pair(20.0, 20.0))
      << "alpha / sqrt(rank)";
  NamedTensors stored = pairs("");
  stored[a + ".alpha"] = at::full({}, 7, at::kFloat);
  EXPECT_EQ(alphas(raw(stored)), std::pair(7.0, 4.0));
  EXPECT_NE(refusal(raw(pairs("base_model.model."))).find("adapter_config.json"), std::string::npos);
  std::ofstream(folder_ / "adapter_config.json") << R"({"lora_alpha": 6, "r": 4})";
  EXPECT_EQ(alphas(raw(pairs("base_model.model."))), std::pair(6.0, 6.0));
}

TEST_F(Spellings, RefusesWhatItCannotUseAndSaysWhy) {
  const NamedTensors good{{"transformer.transformer_blocks.0.attn.to_q.lora_A.weight", ones(4, 3)},
                          {"transformer.transformer_blocks.0.attn.to_q.lora_B.weight", ones(6, 4)}};
  const auto expect = [&](const NamedTensors& more, const std::string& code, const std::string& text) {
    NamedTensors all = good;
    for (const auto& [name, tensor] : more) all[name] = tensor;
    const std::string message = refusal(raw(all));
    EXPECT_TRUE(message.starts_with(code + ": ")) << message;
    EXPECT_NE(message.find(text), std::string::npos) << message;
    EXPECT_NE(message.find("raw.safetensors"), std::string::npos) << message;
  };
  EXPECT_EQ(refusal(raw(good)), "accepted");
  expect({{"transformer.transformer_blocks.0.attn.to_qq.lora_A.weight", ones(4, 3)}}, "LORA_KEYS",
         R"(to_qq.lora_A.weight" belongs to no layer of FLUX.2 (did you mean "transformer_blocks.0.attn.to_q")");
  expect({{"lora_unet_double_blocks_0_img_atn_qkv.lora_down.weight", ones(4, 3)}}, "LORA_KEYS",
         R"(did you mean "double_blocks_0_img_attn_qkv")");
  expect({{"lora_te1_layers_0.lora_down.weight", ones(4, 3)}}, "LORA_KEYS", "belongs to no layer of FLUX.2");
  expect({{"transformer.transformer_blocks.0.attn.to_k.lora_A.weight", ones(4, 3)}}, "LORA_KEYS",
         "only one of its two matrices");
  expect({{"transformer.transformer_blocks.1.attn.to_q.lora_A.weight", ones(4, 3)},
          {"transformer.transformer_blocks.1.attn.to_q.lora_B.weight", ones(6, 5)}},
         "LORA_KEYS", "[4, 3] and [6, 5] are no low-rank pair");
  expect({{"diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight", ones(4, 3)},
          {"diffusion_model.double_blocks.0.img_attn.qkv.lora_B.weight", ones(6, 4)}},
         "LORA_KEYS", "fused and alone");
  expect({{"transformer_blocks.0.attn.to_q.lora_A.weight", ones(4, 3)}}, "LORA_KEYS", "under the prefix");
  expect({{"transformer.x_embedder.lokr_w1", ones(4, 3)}}, "LORA_KEYS", "belongs to a LoKr");
  expect({{"transformer.x_embedder.dora_scale", ones(4, 3)}}, "LORA_KEYS", "belongs to a DoRA");
  expect({{"transformer.transformer_blocks.0.attn.to_q.alpha", at::full({}, 0, at::kFloat)}}, "LORA_KEYS",
         "no positive number");
  expect({{"transformer.transformer_blocks.0.attn.to_q.alpha", at::full({}, INFINITY, at::kFloat)}}, "LORA_KEYS",
         "no positive number");
  expect({{"transformer.transformer_blocks.0.attn.to_q.lora_down.weight", ones(4, 3)}}, "LORA_KEYS",
         "is there twice, spelled differently");
  expect({{"transformer.transformer_blocks.0.attn.to_q.lora_A.weight", ones(4, 3).to(at::kLong)}}, "LORA_KEYS",
         "does not hold numbers with a point");
  expect({{"transformer.transformer_blocks.0.attn.to_k.lora_B.weight", ones(6, 4)}}, "LORA_KEYS",
         "only one of its two matrices");
  const auto pair = [](const at::Tensor& down, const at::Tensor& up) {
    const std::string other = "transformer.transformer_blocks.1.attn.to_q";
    return NamedTensors{{other + ".lora_A.weight", down}, {other + ".lora_B.weight", up}};
  };
  expect(pair(at::ones({4, 3, 1}, at::kFloat), ones(6, 4)), "LORA_KEYS", "are no low-rank pair");
  expect(pair(ones(4, 3), at::ones({6, 4, 1}, at::kFloat)), "LORA_KEYS", "are no low-rank pair");
  EXPECT_NE(refusal(raw({{"diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight", ones(4, 3)},
                         {"diffusion_model.double_blocks.0.img_attn.qkv.lora_B.weight", ones(7, 4)}}))
                .find("are no low-rank pair"),
            std::string::npos)
      << "7 rows are no three parts";
  expect({{"something.else", ones(1, 1)}}, "LORA_KEYS", "is no part of a LoRA");
  const std::string layer = "transformer.transformer_blocks.0.attn.to_q";
  const auto last = [](int64_t rows, int64_t columns, double value) {
    at::Tensor tensor = ones(rows, columns);
    tensor[rows - 1][columns - 1] = value;
    return tensor;
  };
  expect({{layer + ".lora_A.weight", last(4, 3, INFINITY)}}, "LORA_NONFINITE",
         "to_q.lora_A.weight\" holds NaN or infinity");
  expect({{layer + ".lora_A.weight", last(4, 3, NAN).to(at::kHalf)}}, "LORA_NONFINITE",
         "lora_A.weight\" holds NaN or infinity");
  expect({{layer + ".lora_B.weight", last(6, 4, -INFINITY)}}, "LORA_NONFINITE",
         "to_q.lora_B.weight\" holds NaN or infinity");
  EXPECT_NE(refusal(raw(good, {{"lora_adapter_metadata", "["}})).find("is no JSON object"), std::string::npos);
  EXPECT_NE(refusal(raw(good, {{"lora_adapter_metadata", R"({"transformer.use_dora": true})"}})).find("DoRA"),
            std::string::npos);
  const std::string deep = R"({"transformer.r": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  const std::string refused = refusal(raw(good, {{"lora_adapter_metadata", deep}}));
  EXPECT_TRUE(refused.starts_with("JSON_DEPTH: ")) << refused;
  EXPECT_NE(refused.find("its lora_adapter_metadata: its JSON is nested deeper than 64 levels"), std::string::npos)
      << refused;
}

TEST_F(Spellings, AStrengthThatIsNotClearlyStatedIsRefused) {
  const std::string q = "transformer.transformer_blocks.0.attn.to_q";
  const NamedTensors good{{q + ".lora_A.weight", ones(4, 3)}, {q + ".lora_B.weight", ones(6, 4)}};
  const auto refusal_of = [&](const std::string& config) {
    const std::string message = refusal(raw(good, {{"lora_adapter_metadata", config}}));
    EXPECT_TRUE(message == "accepted" || message.starts_with("LORA_CONFIG: ")) << message;
    return message;
  };
  for (const char* alpha : {"null", "\"8\"", "-8", "0", "0.0", "true", "[8]", "{}"})
    EXPECT_NE(refusal_of(R"({"transformer.lora_alpha": )" + std::string(alpha) + "}").find("no number above 0"),
              std::string::npos)
        << alpha;
  for (const auto& [config, text] : std::map<std::string, std::string>{
           {R"({"lora_alpha": 1e999})", "is no JSON object"},
           {R"({"lora_alpha": 8, "lora_alpha": 4})", R"(has the key "lora_alpha" twice)"},
           {R"({"lora_alpha": 8, "transformer.lora_alpha": 4})", "which differ"},
           {R"({"lora_alpha": 8, "use_rslora": "true"})", "neither true nor false"},
           {R"({"lora_alpha": 8, "use_dora": 1})", "neither true nor false"},
           {R"({"alpha_pattern": [1]})", "alpha_pattern that is no object"},
           {R"({"alpha_pattern": {"to_q": -1}})", "number above 0"},
           {R"({"alpha_pattern": {"to_q": 1, "to_q": 2}})", R"(has the key "to_q" twice)"},
           {R"({"lora_alpha": 1e308, "use_rslora": true})", "an alpha above all numbers"},
           {R"({"lora_alpha": 8, "r": 8})", "states the rank 8, but the matrices of"},
           {R"({"lora_alpha": 8, "r": "4"})", "no whole number above 0"},
           {R"({"lora_alpha": 8, "r": 4.5})", "no whole number above 0"},
           {R"({"lora_alpha": 8, "r": 0})", "no whole number above 0"},
           {R"({"lora_alpha": 8, "r": 1000000000000})", "no whole number above 0"},
           {R"({"alpha_pattern": {"^to_q": 2}})", "no regular expressions"},
           {R"({"lora_alpha": 8, "r": 4, "rank_pattern": 3})", "rank_pattern that is no object"}})
    EXPECT_NE(refusal_of(config).find(text), std::string::npos) << config << ": " << refusal_of(config);
  for (const char* config : {R"({"lora_alpha": 8, "r": null})", R"({"lora_alpha": 8, "transformer.lora_alpha": 8})",
                             R"({"lora_alpha": 0.5, "r": 8, "rank_pattern": {"to_q": 4}})"})
    EXPECT_EQ(refusal_of(config), "accepted") << config;
  for (const char* scale : {"inf", "nan", "0", "-2", "1x", ""})
    EXPECT_NE(refusal(raw(good, {{"software", "trainer"}, {"trainer.folded_scale", scale}}))
                  .find("folded_scale is no positive number"),
              std::string::npos)
        << scale;
  for (const auto& [rows, columns] : {std::pair{0, 6}, std::pair{3, 0}})
    EXPECT_NE(refusal(raw({{q + ".lora_A.weight", ones(4, rows)}, {q + ".lora_B.weight", ones(columns, 4)}}))
                  .find("are no low-rank pair"),
              std::string::npos);
}

TEST_F(Spellings, LayersThatTheModelLacksOrHasInAnotherSizeAreListed) {
  std::vector<Linear> model;
  for (const char* name : {"blocks.0.to_q", "blocks.0.to_k"}) {
    auto state = std::make_shared<LinearState>();
    state->name = name;
    state->in = 3, state->out = 6;
    model.emplace_back(state);
  }
  const auto expect = [&](const std::vector<LoraLayer>& layers, const std::string& code, const std::string& text) {
    try {
      check_layers("a.safetensors", layers, model);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_EQ(std::string(error.what()), "a.safetensors: this LoRA is for another model:" + text);
    }
  };
  EXPECT_NO_THROW(check_layers("a", std::vector<LoraLayer>{{"blocks.0.to_q", ones(4, 3), ones(6, 4), 4}}, model));
  expect({{"blocks.0.to_qq", ones(4, 3), ones(6, 4), 4}}, "LORA_LAYERS",
         "\n  the model has no layer \"blocks.0.to_qq\" (did you mean \"blocks.0.to_q\" or \"blocks.0.to_k\"?)");
  expect({{"blocks.0.to_q", ones(4, 2), ones(6, 4), 4}}, "LORA_LAYERS",
         "\n  \"blocks.0.to_q\": made for a layer of [6, 2], the model's is [6, 3]");
  expect({{"blocks.0.to_k", ones(4, 3), ones(5, 4), 4}}, "LORA_LAYERS",
         "\n  \"blocks.0.to_k\": made for a layer of [5, 3], the model's is [6, 3]");
}

TEST_F(Spellings, OfAFileOfAnotherKindTheFirstLinesAreEnough) {
  NamedTensors tensors;
  for (int i = 0; i < 100; ++i) tensors["odd." + std::to_string(i)] = ones(1, 1);
  const std::string message = refusal(raw(tensors));
  EXPECT_NE(message.find("and 81 more"), std::string::npos) << message;
}

weights::Metadata metadata_of(const std::filesystem::path& file) { return weights::TensorFile(file).metadata(); }

TEST_F(Spellings, MetadataIsWhatTheReadersExpectAndNothingElse) {
  const auto layers = random_layers({4, 2}, "transformer_blocks.0.attn.to_");
  weights::Metadata kohya = metadata_of(write("kohya", layers));
  EXPECT_EQ(kohya.extract("sshs_model_hash").mapped().size(), 64U);
  EXPECT_EQ(kohya.extract("sshs_legacy_hash").mapped(), "e3b0c442") << "of nothing: the file ends before";
  EXPECT_EQ(kohya, (weights::Metadata{{"format", "pt"},
                                      {"software", "trainer"},
                                      {"step", "7"},
                                      {"ss_network_module", "networks.lora_flux_2"},
                                      {"ss_network_dim", "4"},
                                      {"ss_network_alpha", "2"}}));
  weights::Metadata diffusers = metadata_of(write("diffusers", layers));
  const auto config = nlohmann::json::parse(diffusers.at("lora_adapter_metadata"));
  EXPECT_EQ(config.at("transformer.r"), 4);
  EXPECT_EQ(config.at("transformer.lora_alpha"), 4) << "alpha is in B";
  EXPECT_EQ(config.at("transformer.target_modules").size(), layers.size());
  diffusers.erase("lora_adapter_metadata");
  EXPECT_EQ(diffusers, (weights::Metadata{
                           {"format", "pt"}, {"software", "trainer"}, {"step", "7"}, {"trainer.folded_scale", "0.5"}}));
}

TEST_F(Spellings, PublishedSizesAreNamed) {
  for (const auto& [width, version] :
       std::map<int64_t, std::string>{{6144, "flux_2_dev"}, {4096, "flux_2_klein_9b"}, {3072, "flux_2_klein_4b"}}) {
    const std::vector<LoraLayer> layers{{"transformer_blocks.0.attn.to_q", ones(1, width), ones(width, 1), 1},
                                        {"transformer_blocks.0.ff.linear_out", ones(1, 3 * width), ones(width, 1), 1}};
    const weights::Metadata metadata = metadata_of(write("kohya", layers));
    EXPECT_EQ(metadata.at("ss_base_model_version"), version);
    EXPECT_TRUE(metadata.at("modelspec.architecture").ends_with("/lora"));
    EXPECT_EQ(metadata.at("modelspec.sai_model_spec"), "1.0.0");
  }
}

/// What sd-scripts' precalculate_safetensors_hashes gives for these tensors and the metadata that begins with ss_, with
/// the safetensors package of PyPI (0.8.0) and hashlib; the older hash is of bytes within a matrix.
TEST_F(Spellings, HashesAreThoseOfTheReaders) {
  const at::Tensor numbers = at::arange(64 * 6144, at::kFloat);
  const std::vector<LoraLayer> layers{
      {"transformer_blocks.0.attn.to_out.0", numbers.view({64, 6144}), numbers.view({6144, 64}), 32}};
  const std::string data = "c46d106958a753477ad7c0c64f04788c33770f4a0647f27042f28b4edb0086e0";
  const weights::Metadata kohya = metadata_of(write("kohya", layers));
  EXPECT_EQ(kohya.at("ss_base_model_version"), "flux_2_dev");
  EXPECT_EQ(kohya.at("sshs_model_hash"), data);
  EXPECT_EQ(kohya.at("sshs_legacy_hash"), "8ed505f6");
  EXPECT_EQ(kohya.at("modelspec.hash_sha256"), "0x" + data);
  for (const char* format : {"diffusers", "comfyui"}) {
    const weights::Metadata other = metadata_of(write(format, layers));
    EXPECT_FALSE(other.contains("sshs_model_hash")) << format;
    EXPECT_EQ(other.at("modelspec.hash_sha256"), "0x4194e01933a92e6bad2083f74da221c3153e972ac86c85f6e121b6629dd364a7")
        << format;
  }
}

TEST_F(Spellings, NothingOfTheSourcesMetadataIsPassedOn) {
  const auto file = raw({{"lora_unet_double_blocks_0_img_attn_proj.lora_down.weight", ones(2, 3)},
                         {"lora_unet_double_blocks_0_img_attn_proj.lora_up.weight", ones(5, 2)}},
                        {{"ss_dataset_dirs", "/home/me/pictures"}, {"ss_output_name", "me"}, {"step", "/home"}});
  for (const auto& [key, value] : metadata_of(convert(file, "diffusers", "b")))
    EXPECT_EQ(value.find("me/"), std::string::npos) << key;
}

}  // namespace
}  // namespace trainer::adapter
