/// @file Exchanges of host memory among ranks: c10d's Gloo. The only place that knows which library moves the bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <distributed/meeting.hpp>

#include <memory>

namespace trainer::distributed {

class Exchange {
 public:
  /// Connects all ranks of the meeting with each other. Throws Error (unavailable, collective_timeout).
  Exchange(const Place& place, Meeting& meeting, std::chrono::milliseconds timeout);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// All ranks call these in one order, with equal shapes; CPU tensors, contiguous. They return when this rank is
  /// through, and throw what `Meeting::waiting` and `broken` throw.
  /// [n, ...] of every rank -> [ranks, n, ...], in the order of ranks.
  at::Tensor gather(const at::Tensor& own);
  /// Row r of `rows` [ranks, n] goes to rank r; returns what came, row r from rank r.
  at::Tensor swap(const at::Tensor& rows);

 private:
  struct Gloo;
  std::unique_ptr<Gloo> gloo_;
};

}  // namespace trainer::distributed
