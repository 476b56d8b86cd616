/// @file From cached entries to the batches of a run.
#pragma once

#include <cache/builder.hpp>
#include <data/sampler.hpp>
#include <trainer/sdk/objective.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trainer::cache {

/// Of entries that a Reader keeps in memory at most.
constexpr uint64_t kKeptBytes = uint64_t{2} << 30;

/// Reads entries and keeps them in memory up to a limit (first come, first kept); the others are read again each time.
class Reader {
 public:
  explicit Reader(Store store, uint64_t keep_bytes = kKeptBytes) : store_(std::move(store)), keep_bytes_(keep_bytes) {}
  /// Never written to by the caller. Throws as Store::load.
  NamedTensors get(std::string_view kind, const std::string& key);
  [[nodiscard]] uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  Store store_;
  uint64_t keep_bytes_, kept_bytes_ = 0;
  std::map<std::string, NamedTensors> kept_;  // keys of different kinds differ
};

/// The batches of a run: pure functions of (step, micro-batch). Not thread-safe.
class CachedBatches {
 public:
  /// `built` from the cache phase of the dataset whose samples `sampler` counts.
  CachedBatches(Reader reader, Built built, data::Sampler sampler);
  [[nodiscard]] int64_t micro_batches() const { return sampler_.micros(); }
  /// Tensors in the dtype of the cache, in host memory. A dropped caption has the conditioning of the empty one.
  /// Throws Error (bad_input) for a damaged entry, or for conditioning of samples that does not have one shape.
  Batch batch(int64_t step, int64_t micro);
  /// Picture files of a micro-batch, for messages.
  [[nodiscard]] std::vector<std::string> files(int64_t step, int64_t micro) const;
  [[nodiscard]] const data::Sampler& sampler() const { return sampler_; }

 private:
  Reader reader_;
  Built built_;
  data::Sampler sampler_;
};

/// What the sampler needs of a dataset.
std::vector<data::SamplerItem> sampler_items(const data::Dataset& dataset);

}  // namespace trainer::cache
