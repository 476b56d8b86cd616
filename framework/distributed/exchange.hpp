/// @file Exchanges among ranks: of host memory by c10d's Gloo, of devices' by the lanes that are opened for them.
#pragma once

#include <ATen/core/Tensor.h>
#include <distributed/lane.hpp>
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

  /// Tensors on devices of this kind travel by their lane from now on. On all ranks.
  void use(at::DeviceType type, OpenLane open);
  /// Whether tensors on the device may be given to `gather` and `swap`.
  [[nodiscard]] bool carries(at::Device device) const;

  /// All ranks call these in one order, with equal shapes; contiguous tensors of the host or of a lane's device. They
  /// return when this rank is through, and throw what `Meeting::waiting` and `broken` throw. [n, ...] of every rank ->
  /// [ranks, n, ...], in the order of ranks.
  at::Tensor gather(const at::Tensor& own);
  /// Row r of `rows` [ranks, n] goes to rank r; returns what came, row r from rank r.
  at::Tensor swap(const at::Tensor& rows);

 private:
  struct Gloo;
  std::unique_ptr<Gloo> gloo_;
};

}  // namespace trainer::distributed
