#include <ATen/ops/equal.h>
#include <cache/dataset.hpp>

#include "helpers.hpp"

namespace trainer::cache {
namespace {

class BatchesTest : public CacheTest {
 protected:
  CachedBatches batches(const data::SamplerOptions& options, uint64_t keep_bytes = 1 << 20) {
    Built result = built();
    const std::vector<data::SamplerItem> items = sampler_items(dataset());
    return {Reader(store(), keep_bytes), std::move(result), data::Sampler(items, options)};
  }
};

TEST_F(BatchesTest, HoldTheSamplesTheSamplerNames) {
  for (int i = 0; i < 6; ++i)
    picture(std::string(1, static_cast<char>('a' + i)), static_cast<uint8_t>(40 * i),
            std::string(static_cast<std::size_t>(i + 1), 'x'));
  for (const uint64_t keep : {uint64_t{0}, uint64_t{1} << 20}) {
    CachedBatches data = batches({.seed = 3, .batch_size = 4, .micro_batch_size = 2, .caption_dropout = 0.4}, keep);
    EXPECT_EQ(data.micro_batches(), 2);
    int dropped = 0;
    for (int64_t step = 0; step < 9; ++step) {
      for (int64_t micro = 0; micro < 2; ++micro) {
        const Batch batch = data.batch(step, micro);
        const auto draws = data.sampler().batch(static_cast<uint64_t>(step), micro);
        const auto files = data.files(step, micro);
        ASSERT_EQ(batch.latents.sizes(), (std::vector<int64_t>{2, 2, 1, 4, 4}));
        ASSERT_EQ(batch.conditioning.at("embeds").sizes(), (std::vector<int64_t>{2, 3, 2}));
        EXPECT_EQ(batch.step, static_cast<uint64_t>(step));
        for (std::size_t i = 0; i < 2; ++i) {
          const double sample = static_cast<double>(draws[i].sample);
          const auto row = static_cast<int64_t>(i);
          EXPECT_EQ(batch.sample_keys[i], static_cast<uint64_t>(4 * step + 2 * micro) + i);
          EXPECT_NEAR(batch.latents[row].mean().item<double>(), 40 * sample / 127.5 - 1, 1e-6);
          EXPECT_EQ(batch.conditioning.at("embeds")[row].mean().item<double>(), draws[i].drop_caption ? 0 : sample + 1);
          EXPECT_EQ(std::filesystem::path(files[i]).stem().string(),
                    std::string(1, static_cast<char>('a' + draws[i].sample)));
          dropped += draws[i].drop_caption ? 1 : 0;
        }
      }
    }
    EXPECT_GT(dropped, 5);
    EXPECT_LT(dropped, 25);
  }
}

TEST_F(BatchesTest, ADamagedEntryStopsTheRunWithItsName) {
  picture("a", 10, "x");
  CachedBatches data = batches({.batch_size = 1}, 0);
  const std::string latents = built().entries[0].latents;
  write_file_atomically(store().file(kLatents, latents), "gone");
  EXPECT_NE(message_of([&] { data.batch(0, 0); }).find(latents), std::string::npos);
}

TEST_F(BatchesTest, ReaderKeepsUpToItsLimit) {
  picture("a", 10, "x");
  const Built result = built();
  Reader reader(store(), 130);  // latents: 32 floats; embeds: 6
  reader.get(kLatents, result.entries[0].latents);
  EXPECT_EQ(reader.kept_bytes(), 128U);
  reader.get(kText, result.empty_text);
  EXPECT_EQ(reader.kept_bytes(), 128U);
  std::filesystem::remove_all(folder_ / "cache");
  EXPECT_EQ(reader.get(kLatents, result.entries[0].latents).size(), 1U);
  EXPECT_NE(message_of([&] { reader.get(kText, result.empty_text); }), "");
}

TEST_F(BatchesTest, SamplesOfSeveralSizesNeverMeet) {
  picture("a", 10, "x");
  picture("b", 20, "x", 320, 160);
  picture("c", 30, "x", 320, 160);
  source_.resolution = {128};
  source_.repeats = 3;
  CachedBatches data = batches({.batch_size = 4, .micro_batch_size = 4});
  EXPECT_EQ(data.sampler().epoch_size(), 9U);
  for (int64_t step = 0; step < 20; ++step) EXPECT_EQ(data.batch(step, 0).latents.size(0), 4);
}

}  // namespace
}  // namespace trainer::cache
