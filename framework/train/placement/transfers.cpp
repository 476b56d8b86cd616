#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <train/placement/transfers.hpp>

#include <utility>

namespace trainer::train {
namespace {

bool have_streams(at::Device from, at::Device to) {
  return from.type() == to.type() && !from.is_cpu() && !from.is_meta();
}

}  // namespace

const Transfers::Lanes& Transfers::lanes(at::Device device) {
  const auto it = lanes_.find(device.index());
  if (it != lanes_.end()) return it->second;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return lanes_
      .emplace(device.index(), Lanes{guard.getStreamFromGlobalPool(device), guard.getStreamFromGlobalPool(device)})
      .first->second;
}

Parcel Transfers::send(std::vector<at::Tensor> tensors, at::Device from, at::Device to) {
  const at::NoGradGuard no_grad;
  Parcel parcel;
  if (!have_streams(from, to)) {
    for (at::Tensor& tensor : tensors)
      parcel.tensors.push_back(tensor.defined() ? tensor.detach().to(to) : at::Tensor());
    return parcel;
  }
  const c10::Stream out = lanes(from).out, in = lanes(to).in;
  c10::Event made(from.type());
  made.record(c10::impl::VirtualGuardImpl(from.type()).getStream(from));
  made.block(out);
  const c10::StreamGuard there(in), here(out);
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      parcel.tensors.emplace_back();
      continue;
    }
    const at::Tensor source = tensor.detach();
    parcel.tensors.push_back(source.to(to, /*non_blocking=*/true));
    source.record_stream(out);  // its memory may be used again only when the copy is done
  }
  parcel.arrived = std::make_shared<c10::Event>(to.type());
  parcel.arrived->record(in);
  return parcel;
}

std::vector<at::Tensor> Transfers::receive(Parcel parcel, at::Device device) {
  if (parcel.arrived == nullptr) return std::move(parcel.tensors);
  const c10::Stream computing = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  parcel.arrived->block(computing);
  for (const at::Tensor& tensor : parcel.tensors)
    if (tensor.defined()) tensor.record_stream(computing);
  return std::move(parcel.tensors);
}

}  // namespace trainer::train
