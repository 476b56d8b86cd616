/// @file The ranks of a run as the training loop sees them. One process is a group of one, for which every call returns
/// at once, so that nothing else asks how many there are.
///
/// All ranks call the collectives (marked) in one order. Every collective throws Error when the run cannot go on: what
/// another rank failed with, or collective_timeout naming the rank that is gone or late.
#pragma once

#include <ATen/core/Tensor.h>
#include <base/heartbeat.hpp>
#include <distributed/environment.hpp>
#include <distributed/lane.hpp>
#include <trainer/sdk/error.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trainer::distributed {

class Meeting;
class Exchange;
class Group;

/// A number that is not 0, and the first rank that has one; rank -1: none.
struct First {
  int64_t value = 0;
  int rank = -1;
};

/// Work of unknown length outside of training steps, as long as this lives: encoding, loading, saving, drawing. Others
/// that wait for this rank wait as long as it gets on: every beat of this thread (base/heartbeat.hpp) is progress.
class LongWork {
 public:
  /// Ends the work, by Group::check at every beat, when another rank is gone or failed; or not, where what is begun is
  /// to be finished.
  enum class When { all_live, always };
  LongWork(Group& group, const std::string& doing, When when);
  ~LongWork();
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

 private:
  Group& group_;
  Listener listener_;
};

class Group {
 public:
  /// A group of one.
  Group();
  /// Joins the others; returns when all are there. Throws as Meeting and Exchange do. `timeout`: how long a rank that
  /// others wait for may get nothing done.
  Group(const Place& place, std::chrono::milliseconds timeout);
  ~Group();
  Group(Group&&) noexcept;
  Group& operator=(Group&&) = delete;

  /// For whoever is not told of a group.
  static Group& alone();

  [[nodiscard]] int rank() const { return place_.rank; }
  [[nodiscard]] int size() const { return place_.size; }
  /// Rank 0 writes all files of a run and speaks to its user.
  [[nodiscard]] bool writer() const { return place_.rank == 0; }

  /// This rank got something done; others that wait for it wait on.
  void progress(const std::string& doing);
  /// Throws Error when another rank failed, or gave no sign of life for the timeout; for long work between collectives.
  void check() const;
  /// For messages: "2 ranks of torchrun".
  [[nodiscard]] std::string describe() const;

  /// Collective: returns when all ranks came.
  void barrier();
  /// Collective: the writer's text.
  std::string from_writer(const std::string& text);
  /// Collective: the texts of all ranks, in their order.
  std::vector<std::string> texts(const std::string& own);
  /// Collective: throws Error (bad_recipe) naming the first rank whose text differs from rank 0's; `what` is what it
  /// is.
  void require_same(const std::string& what, const std::string& own);
  /// Collective: throws Error (unavailable) naming two ranks of one machine that would use the same device. `own`:
  /// what identifies this rank's devices on its machine.
  void require_apart(const std::vector<std::string>& own);
  /// Collective: the first rank with a number that is not 0.
  First first(int64_t own);
  /// Collective: [n] of every rank, joined in the order of ranks; same device and dtype as given.
  at::Tensor joined(const at::Tensor& own);
  /// Collective: replaces each tensor (fp32, equal shapes on all ranks) by its mean over the ranks. The sum is made in
  /// the order of ranks in fp32, element by element, whatever their number: the same bits on every rank and in every
  /// repetition. Tensors on devices without a lane go through host memory. Returns the first rank with a value that was
  /// not finite before.
  First average(const std::vector<at::Tensor>& tensors);

  /// On all ranks: tensors on devices of this kind are exchanged by a lane, no longer through host memory.
  void use(at::DeviceType type, OpenLane open);
  /// Whether tensors on the device reach other ranks without a copy to the host.
  [[nodiscard]] bool carries(at::Device device) const;
  /// Collective: the mean over the ranks of flat fp32 values in host memory, or where `carries` says so; summed as
  /// `average` does.
  at::Tensor mean(const at::Tensor& flat);
  /// No more collectives: one that waits in another thread throws.
  void abandon();

  /// Runs `work`; when it throws Error, the others are told why, and the message names this rank.
  void together(const std::function<void()>& work);

 private:
  friend class LongWork;
  Place place_;
  std::unique_ptr<Meeting> meeting_;  ///< null in a group of one
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace trainer::distributed
