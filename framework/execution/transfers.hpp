/// @file Copies between the devices of two stages, and of a step's data to them, beside the computation of all.
///
/// Between two accelerators of one kind a copy runs on streams of its own: outgoing and incoming ones apart, since a
/// copy that waits for its source must not hold up one in the other direction. Events order them after the computation
/// of the sender and before that of the receiver, which waits only when it takes the parcel. What comes from the host
/// has a third stream and goes through page-locked memory: from other memory a copy would block the host until the
/// device has done all that it was given before, and no further device would be given work meanwhile. Everything goes
/// through c10's generic streams, so no kind of device is named here.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <map>
#include <memory>
#include <vector>

namespace trainer::execution {

/// Tensors under way. A default-made one is empty.
struct Parcel {
  std::vector<at::Tensor> tensors;      ///< on the receiving device; undefined ones stay undefined
  std::shared_ptr<c10::Event> arrived;  ///< null: nothing to wait for
};

class Transfers {
 public:
  /// Issues the copies of `tensors`, which the current stream of `from` makes (those of the host are there already).
  /// Records no autograd history. With `from` equal to `to` they are passed on.
  Parcel send(std::vector<at::Tensor> tensors, at::Device from, at::Device to);
  /// Lets the current stream of `device` wait for the parcel, and unpacks it.
  std::vector<at::Tensor> receive(Parcel parcel, at::Device device);

 private:
  struct Lanes {
    c10::Stream out, in, from_host;
  };
  const Lanes& lanes(at::Device device);
  Parcel upload(const std::vector<at::Tensor>& tensors, at::Device to);
  std::map<at::DeviceIndex, Lanes> lanes_;
};

}  // namespace trainer::execution
