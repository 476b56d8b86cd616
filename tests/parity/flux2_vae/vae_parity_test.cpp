// The autoencoder against diffusers' numbers: every stage of encode and decode, tiles, both file layouts, bf16.
#include "vae_fixture.hpp"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

namespace trainer::test {
namespace {

constexpr double kFp32 = 1e-5, kBf16L2 = 0.05;

class VaeParity : public testing::TestWithParam<std::filesystem::path> {
 protected:
  void expect(const at::Tensor& got, const std::string& key) {
    const double error = max_error(got, dir_.data.at(key));
    EXPECT_LE(error, kFp32) << key;
    std::printf("  %-20s max %.2e\n", key.c_str(), error);
  }
  at::Tensor image() const { return dir_.data.at("image"); }
  int64_t height() const { return image().size(2) / 16; }
  int64_t width() const { return image().size(3) / 16; }
  /// [B, h*w, C] -> [B, C, 1, h, w].
  at::Tensor unpacked(const at::Tensor& packed) const {
    return packed.transpose(1, 2).reshape({packed.size(0), packed.size(2), 1, height(), width()});
  }
  static at::Tensor packed(const at::Tensor& latents) { return latents.flatten(2).transpose(1, 2); }

  VaeDir dir_{GetParam()};
  c10::NoGradGuard no_grad_;
};

TEST_P(VaeParity, Encode) {
  const auto vae = make_vae(dir_.diffusers, dir_.config);
  const at::Tensor moments = vae->moments(image());
  expect(moments, "encode.moments");
  const at::Tensor mean = moments.narrow(1, 0, moments.size(1) / 2);
  expect(mean, "encode.mean");
  expect(vae->normalise(mean), "encode.normalised");
  const at::Tensor latents = vae->encode(image().unsqueeze(2));
  EXPECT_EQ(latents.sizes(), (std::vector<int64_t>{2, vae->latent_channels(), 1, height(), width()}));
  EXPECT_EQ(latents.scalar_type(), at::kFloat);
  expect(packed(latents), "encode.packed");
}

TEST_P(VaeParity, EncodeTakesPixelsLikeTheReference) {
  const at::Tensor pixels = dir_.data.at("pixels").to(at::kFloat) / 255.0 * 2.0 - 1.0;
  EXPECT_LE(max_error(pixels, image()), 1e-6);
}

TEST_P(VaeParity, Decode) {
  const auto vae = make_vae(dir_.diffusers, dir_.config);
  const at::Tensor latents = unpacked(dir_.data.at("decode.packed"));
  EXPECT_TRUE(same_bits(latents.squeeze(2), dir_.data.at("decode.unpacked")));
  expect(vae->denormalise(latents.squeeze(2)), "decode.latent");
  expect(vae->pixels(dir_.data.at("decode.latent")), "decode.image");
  const at::Tensor image = vae->decode(latents);
  EXPECT_EQ(image.dim(), 5);
  expect(image.squeeze(2), "decode.image");
}

TEST_P(VaeParity, TilesAboveSampleSize) {
  const auto vae = make_vae(dir_.diffusers, dir_.config, "auto");
  expect(vae->moments(image()), "tiled.moments");
  expect(vae->pixels(dir_.data.at("decode.latent")), "tiled.image");
  // The reference itself must tell tiles from no tiles, or this test shows nothing.
  EXPECT_GT(max_error(dir_.data.at("tiled.moments"), dir_.data.at("encode.moments")), 1e-3);
  const at::Tensor small = image().narrow(3, 0, vae->config().sample_size).narrow(2, 0, vae->config().sample_size);
  EXPECT_TRUE(same_bits(vae->moments(small), make_vae(dir_.diffusers, dir_.config, "never")->moments(small)));
}

TEST_P(VaeParity, AlwaysTilesSmallImagesToo) {
  auto config = nlohmann::json::parse(dir_.config);
  const int64_t side = 2 * image().size(3) / 32 * 32;
  config["sample_size"] = side;
  const at::Tensor wide = at::cat({image(), image()}, 3).narrow(3, 0, side);  // fits one tile
  const at::Tensor whole = make_vae(dir_.diffusers, config.dump(), "auto")->moments(wide);
  EXPECT_TRUE(same_bits(whole, make_vae(dir_.diffusers, config.dump(), "never")->moments(wide)));
  const at::Tensor tiles = make_vae(dir_.diffusers, config.dump(), "always")->moments(wide);
  EXPECT_EQ(tiles.sizes(), whole.sizes());
  EXPECT_FALSE(same_bits(tiles, whole));
}

TEST_P(VaeParity, BflFileGivesTheSameBits) {
  const auto ours = make_vae(dir_.diffusers, dir_.config), theirs = make_vae(dir_.bfl, dir_.config);
  const at::Tensor latents = ours->encode(image().unsqueeze(2));
  EXPECT_TRUE(same_bits(latents, theirs->encode(image().unsqueeze(2))));
  EXPECT_TRUE(same_bits(ours->decode(latents), theirs->decode(latents)));
}

TEST_P(VaeParity, Bf16) {
  const auto vae = make_vae(dir_.diffusers, dir_.config, "never", at::kBFloat16);
  const at::Tensor latents = vae->encode(image().unsqueeze(2));
  EXPECT_EQ(latents.scalar_type(), at::kFloat);
  const double encode = l2_error(packed(latents), dir_.data.at("encode.packed"));
  const double decode =
      l2_error(vae->decode(unpacked(dir_.data.at("decode.packed"))).squeeze(2), dir_.data.at("decode.image"));
  std::printf("  bf16 l2: encode %.3f, decode %.3f\n", encode, decode);
  // Random weights make some directories noisier than others: diffusers' own bf16 error is recorded beside the data.
  const auto measured = file_json(GetParam() / "parity.json").at("measured").value("vae", nlohmann::json::object());
  const double reference =
      measured.contains("bf16_vs_fp32.l2") ? measured["bf16_vs_fp32.l2"].at("value").get<double>() : 0;
  const double limit = std::max(kBf16L2, 1.25 * reference);
  EXPECT_LE(encode, limit);
  EXPECT_LE(decode, limit);
  EXPECT_GT(encode, 1e-5);  // it did compute in bf16
}

// As on a processor or a device that oneDNN does not serve: LibTorch's own convolutions.
TEST_P(VaeParity, WithoutOneDnn) {
  struct Off {
    Off() { at::globalContext().setUserEnabledMkldnn(false); }
    ~Off() { at::globalContext().setUserEnabledMkldnn(true); }
  };
  const bool served = flux2_vae::can_pack(dir_.diffusers.at("encoder.conv_in.weight"));
  const at::Tensor with = make_vae(dir_.diffusers, dir_.config)->moments(image());
  const Off off;
  const auto vae = make_vae(dir_.diffusers, dir_.config);
  const at::Tensor without = vae->moments(image());
  expect(without, "encode.moments");
  expect(vae->pixels(dir_.data.at("decode.latent")), "decode.image");
  if (!served) GTEST_SKIP() << "oneDNN does not serve this processor: the same convolutions twice";
  EXPECT_FALSE(same_bits(with, without)) << "the same convolutions twice";
}

// Of its size and company in a call: a cache entry must not depend on what else is missing.
TEST_P(VaeParity, PictureAloneHasTheBitsOfABatch) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto vae = make_vae(dir_.diffusers, dir_.config, "never", dtype);
    const at::Tensor together = vae->moments(image());
    for (int64_t i = 0; i < image().size(0); ++i) {
      EXPECT_TRUE(same_bits(vae->moments(image().narrow(0, i, 1)), together.narrow(0, i, 1))) << dtype << " " << i;
    }
  }
}

TEST_P(VaeParity, SameInputSameBits) {
  const auto a = make_vae(dir_.diffusers, dir_.config), b = make_vae(dir_.diffusers, dir_.config);
  EXPECT_TRUE(same_bits(a->encode(image().unsqueeze(2)), b->encode(image().unsqueeze(2))));
}

INSTANTIATE_TEST_SUITE_P(Dirs, VaeParity, testing::ValuesIn(parity_dirs()), DirName{});

}  // namespace
}  // namespace trainer::test
