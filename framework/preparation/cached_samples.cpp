#include <base/hash.hpp>
#include <cache/dataset.hpp>
#include <preparation/cached_samples.hpp>

#include <charconv>
#include <utility>
#include <vector>

namespace trainer::preparation {
namespace {

uint64_t key_of(const data::Sample& sample) {
  const std::string hex = FieldHash().add(sample.content).add(sample.caption).add(sample.bucket.text()).hex();
  constexpr std::size_t kDigits = 16;  // of 64 bits
  uint64_t key = 0;
  std::from_chars(hex.data(), hex.data() + kDigits, key, 16);
  return key;
}

class HeldOut final : public execution::BatchSource {
 public:
  explicit HeldOut(cache::Store store) : reader_(std::move(store), /*keep_bytes=*/0) {}
  void add(cache::Entry entry, uint64_t key) { samples_.emplace_back(std::move(entry), key); }

  [[nodiscard]] int64_t micro_batches() const override { return static_cast<int64_t>(samples_.size()); }
  Batch batch(int64_t step, int64_t micro) override {
    const auto& [entry, key] = samples_.at(static_cast<std::size_t>(micro));
    Batch batch;
    batch.step = static_cast<uint64_t>(step);
    batch.sample_keys = {key};
    if (!entry.latents.empty()) batch.latents = reader_.get(cache::kLatents, entry.latents).at("latents").unsqueeze(0);
    batch.conditioning = reader_.get(cache::kText, entry.text);
    for (auto& [name, tensor] : batch.conditioning) tensor = tensor.unsqueeze(0);
    return batch;
  }
  [[nodiscard]] std::vector<std::string> files(int64_t, int64_t micro) const override {
    return {samples_.at(static_cast<std::size_t>(micro)).first.file};
  }

 private:
  cache::Reader reader_;
  std::vector<std::pair<cache::Entry, uint64_t>> samples_;
};

}  // namespace

std::unique_ptr<execution::BatchSource> held_out_samples(const cache::Store& store, const data::Dataset& dataset,
                                                         const data::Holdout& holdout, const cache::Built& built) {
  auto samples = std::make_unique<HeldOut>(store);
  for (std::size_t i = 0; i < dataset.samples.size(); ++i)
    if (holdout.held[i]) samples->add(built.entries[i], key_of(dataset.samples[i]));
  return samples;
}

void keep_trained(data::Dataset& dataset, const data::Holdout& holdout, cache::Built& built) {
  dataset.samples = data::part_of(dataset, holdout, /*held=*/false).samples;
  std::vector<cache::Entry> entries;
  for (std::size_t i = 0; i < built.entries.size(); ++i)
    if (!holdout.held[i]) entries.push_back(std::move(built.entries[i]));
  built.entries = std::move(entries);
}

}  // namespace trainer::preparation
