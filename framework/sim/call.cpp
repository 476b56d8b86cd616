#include <sim/call.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/SmallVector.h>

#include <cstring>

#include <sim/clock.hpp>
#include <sim/device.hpp>
#include <sim/memory.hpp>

namespace trainer::sim {
namespace {

at::Tensor make(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  if (like.dim() != 1 || like.size(0) != 0 || like.storage_offset() != 0)
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (like.is_conj()) impl->_set_conj(true);
  if (like.is_neg()) impl->_set_neg(true);
  return tensor;
}

using Tensors = c10::SmallVector<at::Tensor, 4>;

Tensors tensors_of(const c10::IValue& value) {
  Tensors list;
  if (value.isTensor()) {
    list.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector()) list.push_back(tensor.value_or(at::Tensor()));
  }
  return list;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// CUDA takes CPU index tensors for these.
bool host_indices_allowed(const std::string& op) {
  return op == "aten::index" || op == "aten::index_put_" || op == "aten::_index_put_impl_" ||
         op == "aten::_unsafe_index";
}

bool wants_generator(const c10::Argument& argument) {
  return argument.type()->kind() == c10::TypeKind::OptionalType &&
         argument.type()->castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

void see_arguments(Call& call, const c10::FunctionSchema& schema, const torch::jit::Stack& stack, std::size_t base) {
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::IValue& value = stack[base + i];
    const c10::Argument& argument = schema.arguments()[i];
    const bool host_ok = value.isOptionalTensorList() && host_indices_allowed(schema.name());
    for (const at::Tensor& tensor : tensors_of(value))
      if (!host_ok || !tensor.defined() || !tensor.is_cpu())
        call.see(tensor, argument.name().c_str(), is_written(argument));
    if (value.isDevice() && value.toDevice().type() == kSim) call.see(resolve(value.toDevice()));
  }
  call.check();
  call.see({kSim, current_device()});
}

c10::IValue wrapped(Call& call, const c10::IValue& value, const c10::Argument& argument) {
  const bool written = is_written(argument);
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(call.wrap(value.toTensor(), written)) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(call.wrap(tensor, written));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(call.wrap(*tensor, written)) : tensor);
    return list;
  }
  if (value.isDevice()) return c10::Device(c10::kCPU);
  if (value.isGenerator()) return cpu_generator(value.toGenerator(), call.device());
  if (value.isNone() && wants_generator(argument)) return default_cpu_generator(call.device().index());
  return value;
}

c10::IValue unwrapped(Call& call, const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) return call.unwrap(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(call.unwrap(tensor));
  return list;
}

}  // namespace

void Call::see(const at::Tensor& tensor, const char* argument, bool written) {
  if (!tensor.defined()) return;
  if (tensor.is_privateuseone()) {
    see(tensor.device());
    if (*device_ != tensor.device()) fail(tensor.device(), argument);
    return;
  }
  if (tensor.dim() > 0 || written || !tensor.is_cpu()) host_argument_ = argument;
  host_.push_back(tensor);
}

void Call::check() const {
  if (device_ && !host_argument_.empty()) fail(at::kCPU, host_argument_.c_str());
}

c10::Device Call::device() const { return device_.value(); }

void Call::fail(c10::Device other, const char* argument) const {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", *device_,
              " and ", other, "! (when checking argument for argument ", argument, " in method ", name_, ")");
}

c10::Storage Call::alias(const c10::Storage& storage) {
  for (auto& [sim, cpu] : storages_)
    if (sim.is_alias_of(storage)) return cpu;
  c10::Storage cpu(c10::Storage::use_byte_size_t(), storage.nbytes(),
                   c10::DataPtr(storage.unsafeGetStorageImpl()->mutable_data(), c10::Device(c10::kCPU)),
                   &host_allocator(), /*resizable=*/true);
  storages_.emplace_back(storage, cpu);
  return cpu;
}

at::Tensor Call::wrap(const at::Tensor& tensor, bool written) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  for (Wrapped& known : wrapped_)
    if (known.sim.is_same(tensor)) {
      known.written |= written;
      return known.cpu;
    }
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided, name_, ": only strided tensors on sim");
  at::Tensor cpu = make(alias(tensor.storage()), c10::DispatchKey::CPU, tensor);
  wrapped_.push_back({tensor, cpu, written});
  return cpu;
}

at::Tensor Call::unwrap(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu()) return tensor;
  for (const Wrapped& known : wrapped_)
    if (known.cpu.is_same(tensor)) return known.sim;
  for (const at::Tensor& host : host_)
    if (host.is_same(tensor)) return host;
  for (auto& [sim, cpu] : storages_)
    if (cpu.is_alias_of(tensor.storage())) return make(sim, c10::DispatchKey::PrivateUse1, tensor);
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided, name_, ": only strided results on sim");
  auto* impl = tensor.storage().unsafeGetStorageImpl();
  c10::Storage sim(c10::Storage::use_byte_size_t(), impl->nbytes(), adopt(impl, 1), &device_allocator(),
                   /*resizable=*/true);
  storages_.emplace_back(sim, tensor.storage());
  return make(sim, c10::DispatchKey::PrivateUse1, tensor);
}

c10::DataPtr Call::adopt(c10::StorageImpl* storage, std::size_t users) {
  if (storage->data() == nullptr) return {nullptr, nullptr, &release, *device_};
  BlockHeader* header = header_of(storage->data_ptr());
  if (header != nullptr && c10::raw::intrusive_ptr::use_count(storage) <= users) {
    move_charge(*header, device_->index());
    // The CPU storage keeps reading it.
    auto data = storage->set_data_ptr(c10::DataPtr(storage->mutable_data(), c10::Device(c10::kCPU)));
    data.unsafe_set_device(*device_);
    return data;
  }
  const c10::DeviceGuard guard(*device_);  // foreign or shared memory: a copy
  auto data = device_allocator().allocate(storage->nbytes());
  std::memcpy(data.get(), storage->data(), storage->nbytes());
  return data;
}

void Call::sync() {
  for (Wrapped& known : wrapped_) {
    if (!known.written) continue;
    if (known.cpu.sizes() != known.sim.sizes() || known.cpu.strides() != known.sim.strides())
      known.sim.unsafeGetTensorImpl()->set_sizes_and_strides(known.cpu.sizes(), known.cpu.strides(),
                                                             known.cpu.storage_offset());
  }
  for (auto& [sim, cpu] : storages_) {
    if (cpu.data() == sim.data()) continue;
    auto* impl = cpu.unsafeGetStorageImpl();
    sim.unsafeGetStorageImpl()->set_data_ptr_noswap(adopt(impl, SIZE_MAX));
    sim.unsafeGetStorageImpl()->set_nbytes(impl->nbytes());
  }
}

void run_on_cpu(const c10::OperatorHandle& op, const c10::OperatorHandle& target, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t count = schema.arguments().size(), base = stack->size() - count;
  Call call(schema.name());
  see_arguments(call, schema, *stack, base);
  std::vector<at::Tensor> in, out;
  const bool timed = timeline_on();
  for (std::size_t i = 0; i < count; ++i) {
    c10::IValue& value = (*stack)[base + i];
    if (timed)
      for (const at::Tensor& tensor : tensors_of(value)) in.push_back(tensor);
    value = wrapped(call, value, schema.arguments()[i]);
  }
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    const ChargeTemporaries charge(call.device().index());
    target.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.sync();
  for (std::size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = unwrapped(call, (*stack)[i]);
    if (timed)
      for (const at::Tensor& tensor : tensors_of((*stack)[i])) out.push_back(tensor);
  }
  if (timed) account(call.device().index(), schema.name(), in, out);
}

}  // namespace trainer::sim
