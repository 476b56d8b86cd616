#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <execution/transfers.hpp>

#include <utility>

namespace trainer::execution {
namespace {

bool is_accelerator(at::Device device) { return !device.is_cpu() && !device.is_meta(); }

bool have_streams(at::Device from, at::Device to) {
  return from.type() == to.type() && from != to && is_accelerator(from);
}

/// In page-locked memory, from which a copy does not block the host. The allocator keeps it until the copy is done.
at::Tensor pinned(const at::Tensor& tensor) { return tensor.is_pinned() ? tensor : tensor.pin_memory(); }

}  // namespace

const Transfers::Lanes& Transfers::lanes(at::Device device) {
  const auto it = lanes_.find(device.index());
  if (it != lanes_.end()) return it->second;
  const c10::impl::VirtualGuardImpl guard(device.type());
  const auto stream = [&] { return guard.getStreamFromGlobalPool(device); };
  return lanes_.emplace(device.index(), Lanes{stream(), stream(), stream()}).first->second;
}

Parcel Transfers::send(std::vector<at::Tensor> tensors, at::Device from, at::Device to) {
  const at::NoGradGuard no_grad;
  Parcel parcel;
  if (from.is_cpu() && is_accelerator(to)) return upload(tensors, to);
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

Parcel Transfers::upload(const std::vector<at::Tensor>& tensors, at::Device to) {
  Parcel parcel;
  const c10::Stream stream = lanes(to).from_host;
  const c10::StreamGuard here(stream);
  for (const at::Tensor& tensor : tensors)
    parcel.tensors.push_back(tensor.defined() ? pinned(tensor.detach()).to(to, /*non_blocking=*/true) : at::Tensor());
  parcel.arrived = std::make_shared<c10::Event>(to.type());
  parcel.arrived->record(stream);
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

}  // namespace trainer::execution
