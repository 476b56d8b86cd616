/// @file What the tests of framework/cache share: a folder of pictures, and encoders whose results can be told by hand.
#pragma once

#include <gtest/gtest.h>
#include <base/files.hpp>
#include <cache/builder.hpp>
#include <data/image.hpp>
#include <support/errors.hpp>
#include <trainer/sdk/error.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/mean.h>

#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>

namespace trainer::cache {

using test::message_of;

/// {"embeds": [3, 2] filled with the caption's length}; counts calls.
class FakeTextEncoder final : public TextEncoder {
 public:
  explicit FakeTextEncoder(std::vector<std::size_t>& calls) : calls_(calls) {}
  std::vector<NamedTensors> encode(std::span<const std::string> captions) override {
    calls_.push_back(captions.size());
    std::vector<NamedTensors> results;
    for (const std::string& caption : captions) {
      const double value =
          caption == "poison" ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(caption.size());
      results.push_back({{"embeds", at::full({3, 2}, value, at::kFloat)}});
    }
    return results;
  }
  std::string identity() const override { return "fake"; }
  std::string describe() const override { return "fake"; }

 private:
  std::vector<std::size_t>& calls_;
};

/// [B, 2, 1, H / 16, W / 16] filled with the mean of each picture's pixels.
class FakeAutoencoder final : public Autoencoder {
 public:
  explicit FakeAutoencoder(std::vector<std::size_t>& calls) : calls_(calls) {}
  at::Tensor encode(const at::Tensor& pixels) override {
    calls_.push_back(static_cast<std::size_t>(pixels.size(0)));
    return at::mean(pixels, {1, 2, 3, 4}, true)
        .expand({pixels.size(0), 2, 1, pixels.size(3) / 16, pixels.size(4) / 16});
  }
  at::Tensor decode(const at::Tensor& latents) override { return latents; }
  int64_t spatial_factor() const override { return 16; }
  int64_t latent_channels() const override { return 2; }
  std::string identity() const override { return "fake"; }
  std::string describe() const override { return "fake"; }

 private:
  std::vector<std::size_t>& calls_;
};

/// Pictures of one grey each, captioned, in a folder that vanishes.
class CacheTest : public testing::Test {
 protected:
  CacheTest() {
    data::set_image_module(std::getenv("TRAINER_IMAGE_MODULE"));
    std::string pattern = (std::filesystem::temp_directory_path() / "cache-test-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    source_.folder = (folder_ / "data").string();
    source_.resolution = {64};
    encoders_.autoencoder.name = "fake_vae";
    encoders_.text_encoder.name = "fake_text";
    encoders_.make_autoencoder = [this] { return std::make_unique<FakeAutoencoder>(image_calls_); };
    encoders_.make_text_encoder = [this] { return std::make_unique<FakeTextEncoder>(text_calls_); };
    std::filesystem::create_directories(source_.folder);
  }
  ~CacheTest() override { std::filesystem::remove_all(folder_); }

  void picture(const std::string& name, uint8_t grey, const std::string& caption, int64_t width = 64,
               int64_t height = 64) {
    const std::vector<uint8_t> rgb(static_cast<std::size_t>(3 * width * height), grey);
    data::write_png(folder_ / "data" / (name + ".png"), rgb, width, height);
    write_file_atomically(folder_ / "data" / (name + ".txt"), caption);
  }
  data::Dataset dataset() const { return data::scan(std::span(&source_, 1), {}); }
  Store store() const { return Store(folder_ / "cache"); }
  Built built(std::span<const std::string> more = {}, const BuildOptions& options = {}) {
    image_calls_.clear();
    text_calls_.clear();
    return build(store(), dataset(), more, encoders_, options);
  }
  /// "latents found+made, texts found+made"
  static std::string counts(const Built& result) {
    return std::to_string(result.latents_found) + "+" + std::to_string(result.latents_made) + ", " +
           std::to_string(result.texts_found) + "+" + std::to_string(result.texts_made);
  }

  std::filesystem::path folder_;
  recipe::Data source_;
  Encoders encoders_;
  std::vector<std::size_t> image_calls_, text_calls_;
};

}  // namespace trainer::cache
