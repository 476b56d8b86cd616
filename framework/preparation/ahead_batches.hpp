/// @file The next batch, read from the cache while a device trains on this one.
#pragma once

#include <base/ahead.hpp>
#include <execution/batch_source.hpp>

#include <mutex>
#include <utility>

namespace trainer::preparation {

/// The batches of another source, each made while the one before is used: micro-batches of a step in their order, then
/// the first of the next step. Asked for another one it makes that. Errors come when their batch is asked for.
class AheadBatches final : public execution::BatchSource {
 public:
  /// `source` is borrowed; nobody else may use it. `pin`: into page-locked memory, from which copies to a CUDA device
  /// need not wait.
  AheadBatches(execution::BatchSource& source, bool pin);
  [[nodiscard]] int64_t micro_batches() const override { return micro_batches_; }
  Batch batch(int64_t step, int64_t micro) override;
  [[nodiscard]] std::vector<std::string> files(int64_t step, int64_t micro) const override;

 private:
  using Key = std::pair<int64_t, int64_t>;  // step, micro-batch
  execution::BatchSource& source_;
  int64_t micro_batches_;
  mutable std::mutex mutex_;  // of source_
  Ahead<Key, Batch> ahead_;
};

}  // namespace trainer::preparation
