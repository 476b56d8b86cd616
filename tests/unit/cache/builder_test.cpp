#include <ATen/ops/equal.h>
#include <cache/pixels.hpp>

#include "helpers.hpp"

namespace trainer::cache {
namespace {

TEST_F(CacheTest, MakesWhatIsMissingAndNothingElse) {
  picture("a", 255, "a fox");
  picture("b", 0, "a red fox");
  picture("c", 51, "a fox");
  const Built first = built();
  EXPECT_EQ(counts(first), "0+3, 0+3");  // two captions and the empty one
  EXPECT_EQ(text_calls_, (std::vector<std::size_t>{3}));
  EXPECT_EQ(image_calls_, (std::vector<std::size_t>{1, 1, 1}));
  EXPECT_EQ(first.entries[0].text, first.entries[2].text);
  EXPECT_TRUE(at::equal(store().load(kText, first.entries[1].text).at("embeds"), at::full({3, 2}, 9, at::kFloat)));
  EXPECT_TRUE(at::equal(store().load(kText, first.empty_text).at("embeds"), at::full({3, 2}, 0, at::kFloat)));
  EXPECT_TRUE(
      at::equal(store().load(kLatents, first.entries[0].latents).at("latents"), at::full({2, 1, 4, 4}, 1, at::kFloat)));

  encoders_.make_autoencoder = nullptr;  // not even made when there is nothing to do
  encoders_.make_text_encoder = nullptr;
  EXPECT_EQ(counts(built()), "3+0, 3+0");
}

TEST_F(CacheTest, AChangedInputMisses) {
  picture("a", 10, "a fox");
  picture("b", 20, "a dog");
  built();
  picture("a", 11, "a fox");
  EXPECT_EQ(counts(built()), "1+1, 3+0");
  picture("a", 11, "a cat");
  EXPECT_EQ(counts(built()), "2+0, 2+1");
  source_.trigger = "sks";
  EXPECT_EQ(counts(built()), "2+0, 1+2");
  source_.resolution = {96, 64};
  EXPECT_EQ(counts(built()), "0+2, 3+0");
  encoders_.text_encoder.options = "other layers";
  EXPECT_EQ(counts(built()), "2+0, 0+3");
  encoders_.autoencoder.weights = "other weights";
  EXPECT_EQ(counts(built()), "0+2, 3+0");
  source_.trigger = "";
  source_.resolution = {64};
  encoders_.text_encoder.options = encoders_.autoencoder.weights = "";
  EXPECT_EQ(counts(built()), "2+0, 3+0");  // what was there before still is
}

TEST_F(CacheTest, OtherCaptionsAndProgress) {
  picture("a", 10, "a fox");
  const std::vector<std::string> prompts = {"a prompt", "a fox", ""};
  std::string shown;
  BuildOptions options;
  options.progress = [&](int64_t done, int64_t total, const std::string& what) {
    shown += what + " " + std::to_string(done) + "/" + std::to_string(total) + "; ";
  };
  options.captions_per_call = 2;
  const Built result = built(prompts, options);
  EXPECT_EQ(counts(result), "0+1, 0+3");
  EXPECT_EQ(text_calls_, (std::vector<std::size_t>{2, 1}));
  EXPECT_EQ(
      shown,
      "pictures 0/1; pictures 1/1; captions 0/3; captions 1/3; captions 2/3; captions 3/3; latents 0/1; latents 1/1; ");
  EXPECT_EQ(store().load(kText, text_key(encoders_.text_encoder, "a prompt")).size(), 1U);
}

TEST_F(CacheTest, CaptionsOfACallFitIntoMemory) {
  for (int i = 0; i < 9; ++i) picture(std::to_string(i), 10 + i, "caption " + std::to_string(i));
  BuildOptions options;
  options.captions_first = 2;
  EXPECT_EQ(counts(built({}, options)), "0+9, 0+10");
  EXPECT_EQ(text_calls_, (std::vector<std::size_t>{2, 8}));
  const int64_t one =
      static_cast<int64_t>(store().load(kText, text_key(encoders_.text_encoder, "caption 3")).begin()->second.nbytes());
  text_calls_.clear();
  encoders_.text_encoder.weights = "other weights";
  options.bytes_per_call = 3 * one + one / 2;
  EXPECT_EQ(counts(built({}, options)), "9+0, 0+10");
  EXPECT_EQ(text_calls_, (std::vector<std::size_t>{2, 3, 3, 2}));
  EXPECT_EQ(captions_of_call(options, 10 * one), 1);  // one that is too large goes alone
}

TEST_F(CacheTest, PicturesOfOneSizeShareACall) {
  picture("a", 10, "x");
  picture("b", 20, "x");
  picture("c", 30, "x");
  picture("d", 40, "x", 320, 160);
  source_.resolution = {128};
  BuildOptions options;
  options.images_per_call = 2;
  const Built together = built({}, options);
  EXPECT_EQ(image_calls_.size(), 3U);
  EXPECT_EQ(counts(together), "0+4, 0+2");
  for (const auto& [index, grey] : {std::pair{0, 10}, {1, 20}, {2, 30}, {3, 40}}) {
    const at::Tensor latents =
        store().load(kLatents, together.entries[static_cast<std::size_t>(index)].latents).at("latents");
    EXPECT_NEAR(latents.mean().item<double>(), grey / 127.5 - 1, 1e-6);
  }
}

TEST_F(CacheTest, DamagedEntriesAreMadeAgainWithANote) {
  picture("a", 10, "a fox");
  const Built first = built();
  const auto file = store().file(kLatents, first.entries[0].latents);
  std::string bytes = read_file(file, 1 << 20, "entry");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomically(file, bytes);
  write_file_atomically(store().file(kText, first.empty_text), "short");
  const Built again = built();
  EXPECT_EQ(counts(again), "0+1, 1+1");
  ASSERT_EQ(again.notes.size(), 2U);
  EXPECT_EQ(again.notes[1], "cache entry " + file.string() + ": the checksum does not fit the data; it is made again");
  EXPECT_EQ(counts(built()), "1+0, 2+0");
}

TEST_F(CacheTest, NaNIsNeverCachedAndNamesTheCaption) {
  picture("a", 10, "poison");
  picture("b", 20, "a fox");
  EXPECT_EQ(message_of([&] { built(); }),
            "caption \"poison\": tensor \"embeds\" holds NaN or infinity and is not cached");
  picture("a", 10, "harmless");
  const Built mended = built();
  EXPECT_EQ(mended.texts_made + mended.texts_found, 3U);
  EXPECT_EQ(store().check(kText, text_key(encoders_.text_encoder, "poison"), true).kind, Store::State::Kind::absent);
}

TEST_F(CacheTest, WhatWasVerifiedIsWhatIsUsed) {
  picture("a", 10, "x");
  picture("b", 20, "x");
  const auto make_autoencoder = encoders_.make_autoencoder;
  encoders_.make_autoencoder = [&] {
    std::filesystem::remove(folder_ / "data/a.png");
    picture("b", 99, "x");
    return make_autoencoder();
  };
  const data::Dataset scanned = dataset();
  const Built made = build(store(), scanned, {}, encoders_, {});
  EXPECT_EQ(counts(made), "0+2, 0+2");
  for (const auto& [index, grey] : {std::pair{0, 10}, {1, 20}}) {
    const at::Tensor latents =
        store().load(kLatents, made.entries[static_cast<std::size_t>(index)].latents).at("latents");
    EXPECT_NEAR(latents.mean().item<double>(), grey / 127.5 - 1, 1e-6);
  }
}

TEST_F(CacheTest, BeyondWhatIsKeptPicturesAreReadAgain) {
  picture("a", 10, "x");
  picture("b", 20, "x");
  const auto make_autoencoder = encoders_.make_autoencoder;
  encoders_.make_autoencoder = [&] {
    for (const char* name : {"a", "b"}) picture(name, 99, "x");
    return make_autoencoder();
  };
  const data::Dataset scanned = dataset();
  BuildOptions options;
  options.keep_bytes = 64 * 64 * 3 + 1;  // of one
  const std::string message =
      message_of([&] { build(store(), scanned, {}, encoders_, options); }, source_.folder + "/");
  EXPECT_TRUE(message.starts_with("1 file cannot be used:\n")) << message;
  EXPECT_TRUE(
      message.ends_with(".png: was changed while the dataset was read\n"
                        "Mend or remove what is named here; the others are cached."))
      << message;
  picture("a", 10, "x");
  picture("b", 20, "x");
  encoders_.make_autoencoder = make_autoencoder;
  EXPECT_EQ(counts(built()), "1+1, 2+0");
}

TEST_F(CacheTest, WhatIsDoneStaysWhateverEndsTheWork) {
  for (uint8_t i = 0; i < 3; ++i) picture(std::string(1, static_cast<char>('a' + i)), i, std::string(i + 1, 'x'));
  BuildOptions options;
  options.progress = [](int64_t done, int64_t, const std::string& what) {
    if (what == "latents" && done == 2) throw Error(ExitCode::preempted, "stopped");
  };
  EXPECT_EQ(message_of([&] { built({}, options); }), "stopped");
  EXPECT_EQ(counts(built()), "2+1, 4+0");
}

TEST_F(CacheTest, PartsTogetherMakeEverythingOnce) {
  for (uint8_t i = 0; i < 9; ++i) picture(std::string(1, static_cast<char>('a' + i)), i, std::string(i + 1, 'x'));
  std::size_t latents = 0, texts = 0;
  for (int64_t part = 0; part < 3; ++part) {
    BuildOptions options;
    options.part = part;
    options.parts = 3;
    const Built made = built({}, options);
    EXPECT_LT(made.latents_made, 9U) << part;
    EXPECT_EQ(counts(built({}, options)).substr(0, 3), "9+0") << "the rest is left to the others";
    latents += made.latents_made, texts += made.texts_made;
  }
  EXPECT_EQ(latents, 9U);
  EXPECT_EQ(texts, 10U);
  EXPECT_EQ(counts(built()), "9+0, 10+0");
}

TEST_F(CacheTest, EveryBadPictureIsNamedBeforeAnythingIsEncoded) {
  picture("a", 10, "x");
  picture("b", 20, "x");
  picture("c", 30, "x");
  picture("d", 40, "x", 640, 480);
  const auto cut = folder_ / "data/d.png";  // the header is whole, the pixels are not
  std::filesystem::resize_file(cut, std::filesystem::file_size(cut) - 40);
  const data::Dataset scanned = dataset();
  picture("b", 99, "x");
  std::filesystem::remove(folder_ / "data/c.png");
  const std::string message = message_of([&] { build(store(), scanned, {}, encoders_, {}); }, source_.folder + "/");
  EXPECT_TRUE(
      message.starts_with("3 files cannot be used:\n  b.png: was changed while the dataset was read\n"
                          "  c.png: cannot open image c.png: No such file or directory\n  d.png: damaged png"))
      << message;
  EXPECT_TRUE(message.ends_with("\nMend or remove what is named here.")) << message;
  EXPECT_TRUE(text_calls_.empty());
  EXPECT_TRUE(image_calls_.empty());
  picture("b", 20, "x");
  picture("c", 30, "x");
  picture("d", 40, "x");
  EXPECT_EQ(counts(built()), "0+4, 0+2");
}

TEST_F(CacheTest, APictureThatBreaksWhileOthersAreEncodedIsNamedAtTheEnd) {
  picture("a", 10, "x");
  picture("b", 20, "x");
  BuildOptions options;
  options.keep_bytes = 0;
  options.progress = [&](int64_t, int64_t, const std::string& what) {
    if (what == "captions") std::filesystem::remove(folder_ / "data/b.png");
  };
  EXPECT_EQ(message_of([&] { built({}, options); }, source_.folder + "/"),
            "1 file cannot be used:\n  b.png: cannot open image b.png: No such file or directory\n"
            "Mend or remove what is named here; the others are cached.");
  picture("b", 20, "x");
  EXPECT_EQ(counts(built()), "1+1, 2+0");
}

TEST_F(CacheTest, AnEncoderThatFailsIsNamed) {
  picture("a", 10, "x");
  struct Broken final : TextEncoder {
    std::vector<NamedTensors> encode(std::span<const std::string>) override { return {}; }
    std::string identity() const override { return {}; }
    std::string describe() const override { return {}; }
  };
  encoders_.make_text_encoder = [] { return std::make_unique<Broken>(); };
  EXPECT_EQ(message_of([&] { built(); }), "plugin \"fake_text\", encode: 0 results for 2 captions");
}

TEST(Pixels, AreScaledToOneAndInPlanes) {
  const std::vector<data::Image> images = {{2, 1, {0, 127, 255, 1, 2, 3}}, {2, 1, {9, 9, 9, 9, 9, 9}}};
  const at::Tensor pixels = to_pixels(images);
  EXPECT_EQ(pixels.sizes(), (std::vector<int64_t>{2, 3, 1, 1, 2}));
  const float* values = pixels.const_data_ptr<float>();
  EXPECT_EQ(values[0], -1.0F);
  EXPECT_EQ(values[1], 2.0F * (1.0F / 255.0F) - 1.0F);
  EXPECT_EQ(values[2], 2.0F * (127.0F / 255.0F) - 1.0F);
  EXPECT_EQ(values[4], 1.0F);
  EXPECT_EQ(message_of([] { to_pixels({}); }), "no picture to make a tensor of");
}

}  // namespace
}  // namespace trainer::cache
