/// @file Writing the formats, reading them again, and what a fused layer computes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>

#include <adapter/fuse.hpp>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <trainer/sdk/error.hpp>

#include "lora_fixture.hpp"

namespace trainer::adapter {
namespace {

using Formats = LoraFiles;
const std::vector<std::string> kFormats{"diffusers", "comfyui", "kohya"};

NamedTensors tensors_of(const std::filesystem::path& file) { return test::load_tensors(file); }

void expect_same_file(const std::filesystem::path& a, const std::filesystem::path& b, const std::string& what) {
  const NamedTensors first = tensors_of(a), second = tensors_of(b);
  ASSERT_EQ(first.size(), second.size()) << what;
  for (const auto& [name, tensor] : first) {
    ASSERT_TRUE(second.contains(name)) << what << ": " << name;
    EXPECT_TRUE(test::same_bits(tensor, second.at(name))) << what << ": " << name;
  }
}

TEST_F(Formats, EveryLayerOfTheModelHasAnAlias) {
  const LayerNames names(family_);
  const std::vector<LoraLayer> layers = random_layers({});
  EXPECT_EQ(layers.size(), 2 * 12 + 2 * 2 + 11U);
  for (const LoraLayer& layer : layers) EXPECT_TRUE(names.alias_of(layer.layer)) << layer.layer;
}

TEST_F(Formats, ThereAndBackGivesTheSameBits) {
  // alpha = rank; kohya's default of 1, a power of two below it; and one that is none, in 16 bits
  const std::vector<LoraShape> shapes{{4, 4},           {4, 1}, {16, 1}, {4, 4, at::kBFloat16}, {4, 10, at::kBFloat16},
                                      {3, 1, at::kHalf}};
  for (const LoraShape& shape : shapes) {
    for (const std::string& from : kFormats) {
      const auto first = write(from, random_layers(shape), "first");
      for (const std::string& to : kFormats) {
        const auto back = convert(convert(first, to, "there"), from, "back");
        expect_same_file(
            first, back,
            from + " " + to + " rank " + std::to_string(shape.rank) + " alpha " + std::to_string(shape.alpha));
      }
    }
  }
}

/// Some programs shrink LoRAs to 8 bits: what is read is written in every format, its values as they were.
TEST_F(Formats, EveryTypeOfNumbersIsReadAndWritten) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn,
                                     at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz}) {
    NamedTensors tensors;
    std::vector<LoraLayer> layers = random_layers({4, 4}, "transformer_blocks.0.attn.to_");
    for (LoraLayer& layer : layers) {
      layer.down = layer.down.to(dtype), layer.up = layer.up.to(dtype);
      tensors["transformer." + layer.layer + ".lora_A.weight"] = layer.down;
      tensors["transformer." + layer.layer + ".lora_B.weight"] = layer.up;
    }
    const auto file = raw(tensors);
    for (const std::string& format : kFormats) {
      const LoraFile back = read_lora(convert(file, format, "other"), family_);
      ASSERT_EQ(back.layers.size(), layers.size()) << dtype;
      for (std::size_t i = 0; i < layers.size(); ++i) {
        EXPECT_TRUE(at::equal(back.layers[i].down.to(at::kDouble), layers[i].down.to(at::kDouble))) << dtype << format;
        EXPECT_TRUE(at::equal(back.layers[i].up.to(at::kDouble), layers[i].up.to(at::kDouble))) << dtype << format;
      }
    }
  }
}

TEST_F(Formats, OddAlphaInFp32KeepsItsStrengthAndStaysFromThen) {
  const auto layers = random_layers({4, 10});
  const auto first = write("kohya", layers, "first");
  const auto diffusers = convert(first, "diffusers", "diffusers");
  const LoraFile read = read_lora(diffusers, family_);
  ASSERT_EQ(read.layers.size(), layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i)
    EXPECT_LE(test::max_error(delta(read.layers[i]), delta(layers[i])), 1e-6) << layers[i].layer;
  expect_same_file(diffusers, convert(convert(diffusers, "kohya", "b"), "diffusers", "c"), "stays");
}

TEST_F(Formats, EveryFormatComputesTheSame) {
  for (const LoraShape& shape : {LoraShape{4, 4}, LoraShape{4, 10}}) {
    const auto layers = random_layers(shape);
    for (const std::string& format : kFormats) {
      const LoraFile read = read_lora(write(format, layers), family_);
      EXPECT_EQ(read.format, format);
      ASSERT_EQ(read.layers.size(), layers.size()) << format;
      for (std::size_t i = 0; i < layers.size(); ++i) {
        EXPECT_EQ(read.layers[i].layer, layers[i].layer);
        EXPECT_LE(test::max_error(delta(read.layers[i]), delta(layers[i])), 1e-6) << format << layers[i].layer;
      }
    }
  }
}

TEST_F(Formats, FusedQkvIsTheThreeOneOverTheOther) {
  const auto layers = random_layers({4, 2}, "transformer_blocks.0.attn.");
  const auto file = write("kohya", layers);
  const NamedTensors tensors = tensors_of(file);
  const std::string fused = "lora_unet_double_blocks_0_img_attn_qkv";
  const LoraLayer qkv{"", tensors.at(fused + ".lora_down.weight"), tensors.at(fused + ".lora_up.weight"),
                      tensors.at(fused + ".alpha").item<double>()};
  EXPECT_EQ(qkv.rank(), 12) << "three independent ones";
  std::map<std::string, at::Tensor> parts;
  for (const LoraLayer& layer : layers) parts[layer.layer] = delta(layer);
  const std::string stem = "transformer_blocks.0.attn.";
  const at::Tensor expected = at::cat({parts.at(stem + "to_q"), parts.at(stem + "to_k"), parts.at(stem + "to_v")});
  EXPECT_LE(test::max_error(delta(qkv), expected), 1e-6);
}

TEST_F(Formats, OneAOfThreeStaysOne) {
  auto layers = random_layers({4, 4}, "transformer_blocks.0.attn.to_");
  for (LoraLayer& layer : layers)
    if (layer.layer.find("to_out") == std::string::npos) layer.down = layers.back().down.clone();
  const auto file = write("comfyui", layers);
  EXPECT_EQ(tensors_of(file).at("diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight").size(0), 4);
  expect_same_file(file, convert(convert(file, "diffusers", "b"), "comfyui", "c"), "shared A");
}

TEST_F(Formats, MissingPartsAndUnequalRanksComeBack) {
  const std::string stem = "transformer_blocks.1.attn.";
  const auto all = random_layers({4, 4}, stem + "to_");
  const auto big = random_layers({6, 6}, stem + "to_");
  const auto pick = [&](const std::vector<LoraLayer>& from, const std::string& name) {
    for (const LoraLayer& layer : from)
      if (layer.layer == stem + name) return layer;
    throw std::logic_error(name);
  };
  const std::vector<std::vector<LoraLayer>> cases{{pick(all, "to_q")},
                                                  {pick(all, "to_v")},
                                                  {pick(all, "to_q"), pick(all, "to_v")},
                                                  {pick(all, "to_k"), pick(big, "to_q"), pick(all, "to_v")}};
  for (const auto& layers : cases) {
    const auto file = write("diffusers", layers);
    for (const std::string format : {"comfyui", "kohya"})
      expect_same_file(file, convert(convert(file, format, "b"), "diffusers", "c"), format);
  }
}

TEST_F(Formats, PartsOfDifferentStrengthAreFusedRight) {
  auto layers = random_layers({4, 4}, "transformer_blocks.0.attn.to_");
  layers[0].alpha = 8;
  layers[2].alpha = 3;
  const LoraFile read = read_lora(write("kohya", layers), family_);
  ASSERT_EQ(read.layers.size(), layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i)
    EXPECT_LE(test::max_error(delta(read.layers[i]), delta(layers[i])), 1e-6) << layers[i].layer;
}

TEST_F(Formats, FinalModulationHasItsHalvesExchanged) {
  const auto layers = random_layers({4, 4}, "norm_out.linear");
  const NamedTensors tensors = tensors_of(write("comfyui", layers));
  const at::Tensor up = tensors.at("diffusion_model.final_layer.adaLN_modulation.1.lora_B.weight");
  const int64_t half = up.size(0) / 2;
  EXPECT_TRUE(at::equal(up.narrow(0, 0, half), layers[0].up.narrow(0, half, half)));
  EXPECT_TRUE(at::equal(up.narrow(0, half, half), layers[0].up.narrow(0, 0, half)));
}

TEST_F(Formats, KeysAreThoseOfComfyUi) {
  std::ifstream list(std::string(std::getenv("TRAINER_SOURCE_ROOT")) + "/tests/data/lora/comfyui_keys.txt");
  std::set<std::string> known;
  for (std::string line; std::getline(list, line);)
    if (!line.starts_with("#")) known.insert(line);
  ASSERT_GT(known.size(), 80U);
  for (const std::string& format : kFormats) {
    std::set<std::string> written;
    for (const auto& [name, tensor] : tensors_of(write(format, random_layers({}))))
      written.insert(parse_lora_key(name)->stem);
    for (const std::string& key : written) {
      // Under diffusers' names ComfyUI knows neither time embedding nor shared modulation: docs/lora-formats.md.
      const bool unmapped = format == "diffusers" && (key.find("time_guidance_embed") != std::string::npos ||
                                                      key.find("_modulation") != std::string::npos);
      EXPECT_EQ(known.contains(key), !unmapped) << format << " " << key;
    }
  }
}

/// Under either name ComfyUI changes the same rows of the same weight by the same numbers.
TEST_F(Formats, ComfyUiChangesTheSameRowsUnderEitherName) {
  const auto layers = random_layers({4, 2});
  const NamedTensors ours = tensors_of(write("diffusers", layers)), theirs = tensors_of(write("comfyui", layers, "b"));
  const auto change = [](const NamedTensors& tensors, const std::string& key) {
    return at::mm(tensors.at(key + ".lora_B.weight"), tensors.at(key + ".lora_A.weight"));
  };
  std::ifstream list(std::string(std::getenv("TRAINER_SOURCE_ROOT")) + "/tests/data/lora/comfyui_targets.txt");
  std::size_t compared = 0;
  for (std::string line; std::getline(list, line); compared += line.starts_with("#") ? 0 : 1) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string key, target, rows;
    words >> key >> target >> rows;
    at::Tensor expected = change(theirs, target);
    if (rows == "swapped") expected = at::cat({expected.chunk(2)[1], expected.chunk(2)[0]});
    if (rows.ends_with("/3")) expected = expected.chunk(3)[static_cast<std::size_t>(rows[0] - '0')];
    EXPECT_LE(test::max_error(change(ours, key), expected), 1e-6) << line;
  }
  EXPECT_EQ(compared, 32U);
}

TEST_F(Formats, NothingThatIsNotFiniteIsWritten) {
  for (const std::string& format : kFormats) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      auto layers = random_layers({}, "add_q_proj");
      layers[1].up[0][0] = bad;
      try {
        write(format, layers, "bad");
        FAIL() << format;
      } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), ExitCode::non_finite);
        EXPECT_NE(std::string(error.what()).find(format == "diffusers" ? "add_q" : "qkv"), std::string::npos)
            << error.what();
      }
      EXPECT_FALSE(std::filesystem::exists(folder_ / "bad.safetensors"));
    }
  }
  // Folding alpha can overflow what was finite.
  auto large = random_layers({4, 4e30}, "to_q");
  large[0].up.fill_(1e20F);
  EXPECT_THROW(write("diffusers", large, "bad"), Error);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "bad.safetensors"));
}

}  // namespace
}  // namespace trainer::adapter
