/// @file What moves tensors of one kind of device among ranks, where host memory is not the way.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace c10d {
class Store;
}

namespace trainer::distributed {

class Lane {
 public:
  virtual ~Lane() = default;
  /// All ranks call these in one order, with equal shapes; contiguous tensors on one device of each. They return when
  /// this rank is through. Meanwhile `waiting` is called every few milliseconds; when it throws, the lane is not used
  /// any more. Errors are C++ exceptions.
  /// `own` [n] of every rank -> `all` [ranks * n], in the order of ranks.
  virtual void gather(at::Tensor& all, at::Tensor& own, const std::function<void()>& waiting) = 0;
  /// Row r of `in` [ranks, n] goes to rank r; `out`: what came, row r from rank r.
  virtual void swap(at::Tensor& out, at::Tensor& in, const std::function<void()>& waiting) = 0;
};

/// "trainer_nccl_lane" of libtrainer_nccl.so: connects nothing yet. The caller owns what it returns.
using OpenLane = Lane* (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank, int ranks);

}  // namespace trainer::distributed
