// What the autoencoder reads from files: prefixes, optional tensors, shapes instead of a config, and its error
// messages.
#include "vae_fixture.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

namespace trainer::test {
namespace {

/// What the action throws, as text; fails when it throws nothing or another code.
template <typename Action>
std::string error_text(const std::string& code, Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

NamedTensors prefixed(const NamedTensors& tensors, const std::string& prefix) {
  NamedTensors out;
  for (const auto& [name, tensor] : tensors) out.emplace(prefix + name, tensor);
  return out;
}

void rename(NamedTensors& tensors, const std::string& from, const std::string& to) {
  const at::Tensor tensor = tensors.at(from);
  tensors.erase(from);
  tensors.emplace(to, tensor);
}

class VaeFiles : public testing::Test {
 protected:
  at::Tensor image() const { return dir_.data.at("image").unsqueeze(2); }
  at::Tensor encoded(NamedTensors tensors, const std::string& config) const {
    return make_vae(std::move(tensors), config)->encode(image());
  }
  std::string changed(const std::string& key, const nlohmann::json& value) const {
    auto config = nlohmann::json::parse(dir_.config);
    config[key] = value;
    return config.dump();
  }

  VaeDir dir_{parity_dirs().front()};
};

TEST(VaeSizes, PublishedModelsHaveTheirParameterCounts) {
  const auto count = [](const flux2_vae::Requirements& required) {
    int64_t elements = 0;
    for (const TensorInfo& info : required.tensors()) {
      int64_t size = 1;
      for (const int64_t side : info.shape) size *= side;
      elements += size;
    }
    return elements;
  };
  flux2_vae::VaeConfig config;
  flux2_vae::Requirements encoder, decoder, small;
  flux2_vae::Encoder(encoder, config);
  flux2_vae::Decoder(decoder, config);
  config.decoder_channels = {96, 192, 384, 384};
  flux2_vae::Decoder(small, config);
  EXPECT_EQ(count(encoder), 34'421'696);
  EXPECT_EQ(count(decoder), 49'619'203);
  EXPECT_EQ(encoder.tensors().size() + decoder.tensors().size() + 4, 248U);
  EXPECT_EQ(count(small), 27'946'179);
  EXPECT_EQ(config.spatial_factor(), 16);
  EXPECT_EQ(config.packed_channels(), 128);
}

TEST_F(VaeFiles, PrefixesAreStrippedAndOthersIgnored) {
  const at::Tensor plain = encoded(dir_.diffusers, dir_.config);
  for (const char* prefix : {"vae.", "first_stage_model."}) {
    NamedTensors tensors = prefixed(dir_.bfl, prefix);
    tensors.emplace("model.diffusion_model.img_in.weight", at::zeros({2, 2}));
    EXPECT_TRUE(same_bits(plain, encoded(tensors, dir_.config))) << prefix;
  }
}

TEST_F(VaeFiles, AttentionMayBeConvolutionOrLinearInEitherLayout) {
  NamedTensors tensors = dir_.diffusers;
  const std::string name = "encoder.mid_block.attentions.0.to_q.weight";
  tensors[name] = tensors.at(name).unsqueeze(2).unsqueeze(3);
  EXPECT_TRUE(same_bits(encoded(dir_.diffusers, dir_.config), encoded(tensors, dir_.config)));
}

TEST_F(VaeFiles, QuantConvolutionsOfABflFileMayStandOutside) {
  NamedTensors tensors = dir_.bfl;
  for (const char* part : {"weight", "bias"}) {
    rename(tensors, std::string("encoder.quant_conv.") + part, std::string("quant_conv.") + part);
    rename(tensors, std::string("decoder.post_quant_conv.") + part, std::string("post_quant_conv.") + part);
  }
  EXPECT_TRUE(same_bits(encoded(dir_.bfl, dir_.config), encoded(tensors, dir_.config)));
}

TEST_F(VaeFiles, CounterOfTheBatchNormIsOptional) {
  NamedTensors tensors = dir_.diffusers;
  tensors.erase("bn.num_batches_tracked");
  EXPECT_TRUE(same_bits(encoded(dir_.diffusers, dir_.config), encoded(tensors, dir_.config)));
}

TEST_F(VaeFiles, ShapesTellTheConfigExceptItsConstants) {
  const auto vae =
      make_vae(dir_.bfl, R"({"norm_num_groups": )" +
                             std::to_string(nlohmann::json::parse(dir_.config)["norm_num_groups"].get<int>()) + "}");
  const auto full = make_vae(dir_.bfl, dir_.config);
  EXPECT_EQ(vae->config().encoder_channels, full->config().encoder_channels);
  EXPECT_EQ(vae->config().decoder_channels, full->config().decoder_channels);
  EXPECT_EQ(vae->config().layers_per_block, full->config().layers_per_block);
  EXPECT_EQ(vae->config().latent_channels, full->config().latent_channels);
  EXPECT_EQ(vae->config().patch, 2);
  EXPECT_EQ(vae->config().sample_size, 1024);
  EXPECT_EQ(vae->config().batch_norm_eps, 1e-4);
  EXPECT_TRUE(same_bits(vae->encode(image()), full->encode(image())));
}

TEST_F(VaeFiles, SmallDecoderIsRecognisedByItsShapes) {
  // The encoder's widths double as a narrower decoder: every decoder tensor cut to the first channels.
  auto config = nlohmann::json::parse(dir_.config);
  const auto half = [&](const char* key) { return config.at(key).is_null(); };
  if (!half("decoder_block_out_channels")) GTEST_SKIP() << "this directory has a narrow decoder already";
  const int64_t groups = config.at("norm_num_groups");
  const auto narrow = [groups](int64_t size) { return size > 3 && size % (2 * groups) == 0 ? size / 2 : size; };
  NamedTensors tensors;
  for (const auto& [name, tensor] : dir_.diffusers) {
    at::Tensor cut = tensor;
    if (name.starts_with("decoder.")) {
      for (int64_t axis = 0; axis < std::min<int64_t>(tensor.dim(), 2); ++axis) {
        const bool latent = name == "decoder.conv_in.weight" && axis == 1;
        cut = cut.narrow(axis, 0, latent ? cut.size(axis) : narrow(cut.size(axis)));
      }
    }
    tensors.emplace(name, cut.contiguous());
  }
  const auto vae = make_vae(tensors, dir_.config);
  std::vector<int64_t> widths;
  for (const int64_t width : vae->config().encoder_channels) widths.push_back(narrow(width));
  EXPECT_EQ(vae->config().decoder_channels, widths);
  EXPECT_NE(vae->config().decoder_channels, vae->config().encoder_channels);
  EXPECT_TRUE(contains(vae->describe(), ", decoder "));
}

TEST_F(VaeFiles, WithoutConfigOtherGroupsAreAnErrorThatSaysSo) {
  if (dir_.bfl.at("encoder.conv_in.weight").size(0) % 32 == 0) GTEST_SKIP();
  const std::string text = error_text("MODEL_CONFIG", [&] { make_vae(dir_.bfl, ""); });
  EXPECT_TRUE(contains(text, "norm_num_groups 32 does not divide a width of")) << text;
  EXPECT_TRUE(contains(text, "config.json")) << text;
}

TEST_F(VaeFiles, EverythingThatDoesNotFitIsReportedAtOnce) {
  NamedTensors tensors = dir_.diffusers;
  rename(tensors, "encoder.conv_in.weight", "encoder.conv_inn.weight");
  tensors.erase("bn.running_var");
  tensors["decoder.conv_out.bias"] = at::zeros({4});
  tensors["encoder.conv_out.bias"] = tensors.at("encoder.conv_out.bias").to(at::kLong);
  tensors["unrelated"] = at::zeros({1});
  const std::string text = error_text("MODEL_KEYS", [&] { make_vae(tensors, dir_.config); });
  const auto shape = [&](const char* name) { return shape_text(dir_.diffusers.at(name).sizes()); };
  EXPECT_EQ(text, "vae.safetensors: the tensors do not fit the autoencoder\n  2 missing:\n    \"bn.running_var\" " +
                      shape("bn.running_var") + "\n    \"encoder.conv_in.weight\" " + shape("encoder.conv_in.weight") +
                      " (did you mean \"encoder.conv_inn.weight\"?)\n  2 unexpected, which the model would leave out:\n"
                      "    \"encoder.conv_inn.weight\" " +
                      shape("encoder.conv_in.weight") +
                      " (did you mean \"encoder.conv_in.weight\"?)\n    \"unrelated\" [1]\n  1 of the wrong shape:\n"
                      "    \"decoder.conv_out.bias\": the model needs [3], the file has [4]\n  1 of the wrong dtype:\n"
                      "    \"encoder.conv_out.bias\": the model needs a floating-point type, the file has Long\n"
                      "  is the file complete, and does config.json belong to it?");
}

TEST_F(VaeFiles, ReportsUseTheNamesOfTheFile) {
  NamedTensors tensors = dir_.bfl;
  tensors.erase("decoder.up.0.block.1.conv1.bias");
  tensors.erase("decoder.mid.attn_1.proj_out.weight");
  tensors.erase("encoder.norm_out.bias");
  const std::string text = error_text("MODEL_KEYS", [&] { make_vae(tensors, dir_.config); });
  for (const char* name :
       {"decoder.up.0.block.1.conv1.bias", "decoder.mid.attn_1.proj_out.weight", "encoder.norm_out.bias"}) {
    EXPECT_TRUE(contains(text, std::string("\"") + name + "\"")) << text;
  }
  EXPECT_FALSE(contains(text, "unexpected")) << text;
}

TEST_F(VaeFiles, OtherFilesAreRefused) {
  const NamedTensors other = {{"img_in.weight", at::zeros({2, 2})}};
  const std::string text = error_text("MODEL_KEYS", [&] { make_vae(other, ""); });
  EXPECT_TRUE(contains(text, "vae.safetensors holds no autoencoder")) << text;
  EXPECT_TRUE(contains(text, "\"img_in.weight\"")) << text;
  NamedTensors mixed = dir_.diffusers;
  mixed.merge(NamedTensors(dir_.bfl));
  EXPECT_TRUE(contains(error_text("MODEL_KEYS", [&] { make_vae(mixed, dir_.config); }), "mixes"));
  EXPECT_TRUE(contains(error_text("MODEL_KEYS", [&] { make_vae({}, ""); }), "among its 0 tensors"));
}

TEST_F(VaeFiles, BadConfigsNameTheKey) {
  const auto fails = [&](const std::string& config, const std::string& part) {
    const std::string text = error_text("MODEL_CONFIG", [&] { make_vae(dir_.diffusers, config); });
    EXPECT_TRUE(contains(text, part)) << text;
  };
  fails("{", "vae.safetensors: config.json: ");
  fails("[]", "holds no JSON object");
  fails(changed("_class_name", "AutoencoderKL"),
        "\"_class_name\" is \"AutoencoderKL\", only \"AutoencoderKLFlux2\" is supported");
  fails(changed("act_fn", "gelu"), "\"act_fn\" is \"gelu\"");
  fails(changed("layers_per_block", "2"), "\"layers_per_block\" must be an integer from 1 to 64");
  fails(changed("block_out_channels", {8, 0}), "\"block_out_channels\" must be an integer from 1 to 65536");
  fails(changed("batch_norm_eps", 0), "\"batch_norm_eps\" must be a number above 0");
  fails(changed("patch_size", {2, 1}), "\"patch_size\" must be one number or two equal ones");
  fails(changed("use_quant_conv", 1), "\"use_quant_conv\" must be true or false");
  fails(changed("act_fn", std::vector<int>(100'000, 1)), "1,1,1..., only \"silu\" is supported");
  fails(changed("down_block_types", {"AttnDownEncoderBlock2D"}), "only \"DownEncoderBlock2D\" is supported");
  fails(changed("norm_num_groups", 1000), "norm_num_groups 1000 does not divide");
  fails(changed("decoder_block_out_channels", {8, 8}), "the encoder has 4 levels, the decoder 2");
}

TEST_F(VaeFiles, AConfigOfAnotherModelIsReportedAsShapes) {
  const int64_t other = nlohmann::json::parse(dir_.config).at("latent_channels").get<int64_t>() + 1;
  const std::string text =
      error_text("MODEL_KEYS", [&] { make_vae(dir_.diffusers, changed("latent_channels", other)); });
  const std::string needs = "the model needs [" + std::to_string(other * 4) + "], the file has [";  // cells of 2 x 2
  EXPECT_TRUE(contains(text, "\"bn.running_mean\": " + needs)) << text;
}

TEST_F(VaeFiles, SizesThatDoNotFitAreRefused) {
  const auto vae = make_vae(dir_.diffusers, dir_.config);
  EXPECT_THROW(vae->encode(at::zeros({1, 3, 1, 24, 32})), Error);
  EXPECT_THROW(vae->encode(at::zeros({1, 1, 1, 32, 32})), Error);
  EXPECT_THROW(vae->encode(at::zeros({1, 3, 2, 32, 32})), Error);
  EXPECT_THROW(vae->decode(at::zeros({1, vae->latent_channels() + 1, 1, 2, 2})), Error);
  try {
    vae->encode(at::zeros({1, 3, 32, 40}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "pixels [1,3,32,40]: the autoencoder needs [B,3,1,H,W] with sides that are multiples of 16");
  }
}

TEST_F(VaeFiles, UnknownTilingIsABadRecipe) {
  try {
    make_vae(dir_.diffusers, dir_.config, "sometimes");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
    EXPECT_TRUE(contains(error.what(), "\"autoencoder.tiling\" is \"sometimes\""));
  }
}

TEST_F(VaeFiles, UntileableSampleSizeIsAnErrorNotAWrongSize) {
  const auto vae = make_vae(dir_.diffusers, changed("sample_size", 20), "always");
  EXPECT_TRUE(contains(error_text("MODEL_CONFIG", [&] { vae->encode(image()); }), "sample_size 20"));
}

TEST_F(VaeFiles, DescriptionsNameWhatWasRead) {
  const auto vae = make_vae(dir_.bfl, dir_.config);
  EXPECT_TRUE(contains(vae->describe(), "BFL file")) << vae->describe();
  EXPECT_EQ(vae->spatial_factor(), 16);
  EXPECT_NE(vae->identity(), make_vae(dir_.bfl, changed("batch_norm_eps", 1e-5))->identity());
}

}  // namespace
}  // namespace trainer::test
