/// @file Gradients made the ranks' mean while the backward still makes others: each piece of them is exchanged by a
/// thread as soon as its last gradient has come. The result is that of Group::average, bit for bit.
///
/// How often a gradient comes in a step (once for each micro-batch that reaches its parameter) is what the step before
/// showed, so the first step overlaps nothing. Where one comes later than that told, on any rank, all exchange the
/// step's gradients again.
///
/// On a device the thread works on a stream of its own: an event tells it when a piece's gradients are computed, and
/// what the backward has queued after them does not hold it up.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <distributed/buckets.hpp>
#include <distributed/group.hpp>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace trainer::distributed {

class OverlappedAverage {
 public:
  /// Hangs a hook on every one of `parameters` (leaves of autograd, in the same order on all ranks), which outlive
  /// this, as does `group`. `most`: elements of a piece (buckets.hpp).
  OverlappedAverage(Group& group, std::vector<at::Tensor> parameters, int64_t most = kMostElements);
  /// A step that was begun and not finished ends the group for further collectives.
  ~OverlappedAverage();
  OverlappedAverage(const OverlappedAverage&) = delete;
  OverlappedAverage& operator=(const OverlappedAverage&) = delete;

  /// Before the first backward of a step, with no gradients there. No collectives until `finish`.
  void begin();
  /// Collective, after the last backward: every parameter's gradient is the ranks' mean, zeros where there was none.
  /// Returns the first rank with a value that was not finite. Throws as collectives do.
  First finish();

  [[nodiscard]] int64_t pieces() const { return static_cast<int64_t>(buckets_.size()); }
  /// Pieces that were complete, and so free to go, before the last backward of the step before was over.
  [[nodiscard]] int64_t complete_early() const { return complete_early_; }
  /// Pieces whose exchange has begun, in this step and before `finish`; for measurements and tests.
  [[nodiscard]] int64_t begun_early() const {
    const std::lock_guard lock(mutex_);
    return begun_early_;
  }

 private:
  class Hook;
  void arrived(std::size_t index);
  void exchange();
  [[nodiscard]] at::Tensor packed(const Bucket& bucket) const;
  void send(std::size_t bucket, const c10::Event* ready);
  void take(std::size_t bucket);
  /// On the calling thread's current stream.
  [[nodiscard]] std::shared_ptr<c10::Event> mark(std::size_t bucket) const;
  [[nodiscard]] at::Device device_of(std::size_t bucket) const { return parameters_[buckets_[bucket].first].device(); }
  void end_thread();

  Group& group_;
  std::vector<at::Tensor> parameters_;  ///< the last first: in the order in which their gradients come
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;    ///< by parameter
  std::vector<int64_t> expected_, came_;  ///< gradients of each parameter in the step before, and in this one
  bool known_ = false, late_ = false;     ///< known: there was a step before
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  std::vector<int64_t> missing_;  ///< by bucket: parameters whose last gradient has not come
  bool all_came_ = false, given_up_ = false;
  int64_t begun_early_ = 0, complete_early_ = 0;
  std::vector<std::shared_ptr<c10::Event>> ready_;  ///< by bucket: its gradients are computed; null on the CPU
  // Of the thread, until it has ended.
  std::vector<c10::Stream> streams_;  ///< of each device that it met
  std::vector<at::Tensor> means_;
  std::vector<std::shared_ptr<c10::Event>> meant_;  ///< by bucket: its mean is there; null on the CPU
  bool finite_ = true;
  std::exception_ptr problem_;
};

}  // namespace trainer::distributed
