/// @file Registration of the backend: a fallback for every operation that has a CPU kernel, and the few kernels that
/// need a word of their own.
#include <ATen/EmptyTensor.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <sim/call.hpp>
#include <sim/clock.hpp>
#include <sim/device.hpp>
#include <sim/memory.hpp>
#include <sim/sim.hpp>

namespace trainer::sim {
namespace {

using at::IntArrayRef;
using at::Tensor;

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { run_on_cpu(op, op, stack); }

Tensor empty(IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(resolve(device));
  return at::detail::empty_generic(size, &device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  static const std::string name = "copy_";
  Call call(name);
  const at::AutoDispatchBelowADInplaceOrView below;
  call.wrap(to).copy_(call.wrap(from));
  if (timeline_on()) account_copy(from, to, non_blocking);
  return to;
}

Tensor& set_storage(Tensor& self, at::Storage storage, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  TORCH_CHECK(storage.device() == self.device(), "set_: storage on ", storage.device(), ", tensor on ", self.device());
  const c10::DeviceGuard guard(self.device());
  return at::native::set_storage_cpu_(self, std::move(storage), offset, size, stride);
}
Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
  const std::array<int64_t, 1> size{static_cast<int64_t>(storage.nbytes() / self.itemsize())};
  return set_storage(self, std::move(storage), 0, size, {});
}
Tensor& set_nothing(Tensor& self) {
  const std::array<int64_t, 1> size{0};
  return set_storage(self,
                     c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, self.device()),
                                  &device_allocator(), /*resizable=*/true),
                     0, size, {});
}

/// Attention by the route that the CPU would choose.
int64_t attention_choice(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double p,
                         bool causal, std::optional<double> scale, bool grouped) {
  const int64_t choice = at::native::_fused_sdp_choice_cpp(q, k, v, mask, p, causal, scale, grouped);
  const bool flash = choice == static_cast<int64_t>(at::SDPBackend::flash_attention);
  return flash ? static_cast<int64_t>(at::SDPBackend::overrideable) : choice;
}
using AttentionResult = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;
AttentionResult attention(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias,
                          double p, bool causal, bool, std::optional<double> scale) {
  auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, p, causal, bias, scale);
  const Tensor none = at::empty({0}, q.options().dtype(at::kLong));
  return {out, sums, none, none, q.sym_size(2), k.sym_size(2), none, none, Tensor()};
}
std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                                              const Tensor& v, const Tensor& bias, std::array<bool, 4>,
                                                              const Tensor& out, const Tensor& sums, const Tensor&,
                                                              const Tensor&, c10::SymInt, c10::SymInt, double p,
                                                              bool causal, const Tensor&, const Tensor&,
                                                              std::optional<double> scale) {
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, q, k, v, out, sums, p, causal, bias.defined() ? std::optional(bias) : std::nullopt, scale);
  return {dq, dk, dv, Tensor()};
}

// convolution_overrideable has convolution's schema: that one runs on the aliases. The backward lacks bias_sizes.
void convolution(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const auto target = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  run_on_cpu(op, target, stack);
}
void convolution_backward(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const auto target = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  constexpr std::size_t kArguments =
      10;  // grad, input, weight, stride, padding, dilation, transposed, ..., groups, ...
  const std::size_t base = stack->size() - kArguments;
  const Tensor weight = (*stack)[base + 2].toTensor();
  const bool transposed = (*stack)[base + 6].toBool();
  const int64_t out = transposed ? weight.size(1) * (*stack)[base + 8].toInt() : weight.size(0);
  stack->insert(stack->begin() + static_cast<int64_t>(base) + 3, c10::IValue(std::vector<int64_t>{out}));
  run_on_cpu(target, target, stack);
}

Tensor view(const Tensor& t, IntArrayRef size) { return at::native::view(t, size); }
Tensor as_strided(const Tensor& t, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(t, size, stride, offset);
}
Tensor reshape_alias(const Tensor& t, IntArrayRef size, IntArrayRef stride) {
  return at::native::_reshape_alias(t, size, stride);
}
void record_stream(Tensor& tensor, c10::Stream stream) {
  if (BlockHeader* header = header_of(tensor.storage().unsafeGetStorageImpl()->data_ptr()))
    record_use(*header, stream.id());
}

/// Never destroyed: they would take the kernels back while other statics still use them.
torch::Library& library(const char* name, c10::DispatchKey key) {
  [[gnu::used]] static auto* const all = new std::vector<torch::Library*>;  // a leak is what nothing points to
  all->push_back(new torch::Library(torch::Library::IMPL, name, key, __FILE__, __LINE__));
  return *all->back();
}

std::set<std::string> register_own_kernels(torch::Library& aten) {
  std::set<std::string> names;
  const auto add = [&](const char* name, auto&& kernel) {
    names.insert(name);
    aten.impl(name, std::forward<decltype(kernel)>(kernel));
  };
  add("empty.memory_format", &empty);
  add("_copy_from", &copy_from);
  add("set_.source_Storage", &set_whole_storage);
  add("set_.source_Storage_storage_offset", &set_storage);
  add("set_", &set_nothing);
  add("view", &view);
  add("as_strided", &as_strided);
  add("_reshape_alias", &reshape_alias);
  add("record_stream", &record_stream);
  add("_scaled_dot_product_fused_attention_overrideable", &attention);
  add("_scaled_dot_product_fused_attention_overrideable_backward", &attention_backward);
  add("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  add("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  return names;
}

/// Composite kernels (native_layer_norm, native_group_norm, every structured operation) would win over the backend
/// fallback and round differently. The fallback is named for each operation with a CPU kernel, so that this one runs.
void register_fallback(torch::Library& aten, const std::set<std::string>& own) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const std::string local = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    const auto op = dispatcher.findOp(name);
    if (own.contains(local) || !op || !op->hasSchema() || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    aten.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

}  // namespace

void init(int devices) {
  TORCH_CHECK(devices > 0 && devices <= kMaxDevices && sim::devices() == 0, "sim::init: once, 1 to ", kMaxDevices,
              " devices");
  install_allocators();
  install_devices(devices);
  library("_", c10::DispatchKey::PrivateUse1).fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  // copy_ hands a lazily conjugated source to _copy_from as it is; resolving it would call copy_ again.
  for (const c10::DispatchKey key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative})
    library("aten", key).impl("_copy_from", torch::CppFunction::makeFallthrough());
  torch::Library& aten = library("aten", c10::DispatchKey::PrivateUse1);
  register_fallback(aten, register_own_kernels(aten));
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&attention_choice);
}

}  // namespace trainer::sim
