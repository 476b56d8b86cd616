#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/library.h>
#include <planner/attention_shapes.hpp>
#include <planner/shape_kernels.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/ops/products.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <vector>

namespace trainer::planner {
namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

bool present(const Maybe& tensor) { return tensor.has_value() && tensor->defined(); }

Tensor like_if(bool wanted, const Maybe& tensor) {
  return wanted && present(tensor) ? at::empty_like(*tensor, at::MemoryFormat::Contiguous) : Tensor();
}

/// Statistics are kept in fp32 only when the affine parameters are (native/layer_norm.cpp, group_norm.cpp).
at::ScalarType statistics_type(const Tensor& x, const Maybe& weight) {
  return present(weight) ? weight->scalar_type() : x.scalar_type();
}

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& x, at::IntArrayRef normalised, const Maybe& weight,
                                              const Maybe&, double) {
  std::vector<int64_t> shape = x.sizes().vec();
  for (std::size_t i = shape.size() - normalised.size(); i < shape.size(); ++i) shape[i] = 1;
  const Tensor dense = x.contiguous();  // the kernel works on a copy of strided input
  const at::TensorOptions options = x.options().dtype(statistics_type(x, weight));
  return {at::empty_like(dense), at::empty(shape, options), at::empty(shape, options)};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad, const Tensor& x, at::IntArrayRef,
                                                       const Tensor&, const Tensor&, const Maybe& weight,
                                                       const Maybe& bias, std::array<bool, 3> wanted) {
  const Tensor dense_x = x.contiguous(), dense_grad = grad.contiguous();
  return {wanted[0] ? at::empty_like(dense_x) : Tensor(), like_if(wanted[1], weight), like_if(wanted[2], bias)};
}

std::tuple<Tensor, Tensor, Tensor> group_norm(const Tensor& x, const Maybe& weight, const Maybe&, int64_t batch,
                                              int64_t, int64_t, int64_t groups, double) {
  const at::TensorOptions options = x.options().dtype(statistics_type(x, weight));
  return {at::empty_like(x), at::empty({batch, groups}, options), at::empty({batch, groups}, options)};
}

std::tuple<Tensor, Tensor, Tensor> group_norm_backward(const Tensor&, const Tensor& x, const Tensor&, const Tensor&,
                                                       const Maybe& weight, int64_t, int64_t channels, int64_t, int64_t,
                                                       std::array<bool, 3> wanted) {
  const auto channel_sums = [&](bool asked) {
    return asked ? at::empty({channels}, present(weight) ? weight->options() : x.options()) : Tensor();
  };
  return {wanted[0] ? at::empty_like(x) : Tensor(), channel_sums(wanted[1]), channel_sums(wanted[2])};
}

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  if (x.dim() == 0) return at::empty({}, x.options());
  std::vector<int64_t> shape = x.sizes().vec();
  shape.at(static_cast<std::size_t>(dim < 0 ? dim + x.dim() : dim)) = index.numel();
  return at::empty(shape, x.options());
}

Tensor embedding_backward(const Tensor& grad, const Tensor&, int64_t rows, int64_t, bool) {
  return at::empty({rows, grad.size(-1)}, grad.options());
}

constexpr int64_t kBlockedChannels = 16;

Tensor convolution(const Tensor& x, const Tensor& weight, const Maybe&, at::IntArrayRef stride, at::IntArrayRef padding,
                   at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  std::vector<int64_t> shape{x.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (std::size_t i = 0; i < stride.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    const int64_t reach = dilation[i] * (weight.size(dim) - 1) + 1;
    shape.push_back(transposed ? (x.size(dim) - 1) * stride[i] - 2 * padding[i] + reach + output_padding[i]
                               : (x.size(dim) + 2 * padding[i] - reach) / stride[i] + 1);
  }
  Tensor output = at::empty(shape, x.options());
  // oneDNN computes on copies in a layout of its own, and its channels come in sixteens.
  const auto blocked = [](const Tensor& tensor, int64_t dim) {
    std::vector<int64_t> sides = tensor.sizes().vec();
    int64_t& channels = sides[static_cast<std::size_t>(dim)];
    channels = (channels + kBlockedChannels - 1) / kBlockedChannels * kBlockedChannels;
    return at::empty(sides, tensor.options());
  };
  const Tensor copies[] = {blocked(x, 1), blocked(weight, 0), blocked(output, 1)};
  return output;
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                        at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, bool,
                                                        at::IntArrayRef, int64_t, std::array<bool, 3> wanted) {
  // Where the processor does not multiply bf16, framework/matmul works on copies.
  std::vector<Tensor> wide;
  if (x.scalar_type() == at::kBFloat16 && !has_bf16_products())
    for (const Tensor& t : {grad, x, weight}) wide.push_back(at::empty_like(t, t.options().dtype(at::kFloat)));
  return {wanted[0] ? at::empty_like(x) : Tensor(), wanted[1] ? at::empty_like(weight) : Tensor(),
          wanted[2] ? at::empty({grad.size(1)}, grad.options()) : Tensor()};
}

Tensor scaled_mm(const Tensor& a, const Tensor& b, const Tensor&, const Tensor&, const Maybe&, const Maybe&,
                 std::optional<at::ScalarType> dtype, bool) {
  return at::empty({a.size(0), b.size(1)}, a.options().dtype(dtype.value_or(a.scalar_type())));
}

Tensor int_mm(const Tensor& a, const Tensor& b) {
  return at::empty({a.size(0), b.size(1)}, a.options().dtype(at::kInt));
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const auto shape = at::infer_size(condition.sizes(), at::infer_size(a.sizes(), b.sizes()));
  return at::empty(shape, (a.dim() >= b.dim() ? a : b).options());
}

Tensor mse_loss_backward(const Tensor&, const Tensor& x, const Tensor&, int64_t) { return at::empty_like(x); }

Tensor variance(const Tensor& x, at::OptionalIntArrayRef dims, const std::optional<at::Scalar>&, bool keep) {
  std::vector<int64_t> shape;
  const auto reduced = [&](int64_t dim) {
    if (!dims.has_value() || dims->empty()) return true;
    return std::any_of(dims->begin(), dims->end(), [&](int64_t one) { return (one < 0 ? one + x.dim() : one) == dim; });
  };
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (!reduced(dim)) shape.push_back(x.size(dim));
    if (reduced(dim) && keep) shape.push_back(1);
  }
  return at::empty(shape, x.options());
}

/// LibTorch's own take "meta" for no values to write, but not "meta:1".
Tensor& arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, Tensor& out) {
  const double from = start.toDouble(), to = end.toDouble(), by = step.toDouble();
  TORCH_CHECK(by != 0 && (to - from) / by >= 0, "arange: the step leads away from the end");
  return const_cast<Tensor&>(out.resize_({static_cast<int64_t>(std::ceil((to - from) / by))}));
}
Tensor& linspace(const at::Scalar&, const at::Scalar&, int64_t steps, Tensor& out) {
  return const_cast<Tensor&>(out.resize_({steps}));
}

/// Of real numbers; logsumexp takes it.
Tensor& absolute(const Tensor& x, Tensor& out) { return const_cast<Tensor&>(out.resize_(x.sizes())); }

Tensor& logical(const Tensor& x, const Tensor& y, Tensor& out) {
  return const_cast<Tensor&>(out.resize_(at::infer_size(x.sizes(), y.sizes())));
}

Tensor addbmm(const Tensor&, const Tensor& a, const Tensor& b, const at::Scalar&, const at::Scalar&) {
  return at::empty({a.size(1), b.size(2)}, a.options());
}

/// Elementwise: one output like the first argument.
void like_first(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const Tensor made = at::empty_like((*stack)[first].toTensor());
  stack->resize(first);
  stack->emplace_back(made);
}

/// Of all elements: one number.
void one_number(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const Tensor made = at::empty({}, (*stack)[first].toTensor().options());
  stack->resize(first);
  stack->emplace_back(made);
}

/// In place: the first argument is the result, or there is none.
void in_place(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  stack->resize(stack->size() - op.schema().arguments().size() + op.schema().returns().size());
}

constexpr std::array kLikeFirst{"flip",
                                "roll",
                                "relu",
                                "hardswish",
                                "hardtanh",
                                "hardswish_backward",

                                "_prelu_kernel",
                                "hardtanh_backward",
                                "_masked_softmax",
                                "native_dropout_backward"};
constexpr std::array kOneNumber{"max", "min", "dot", "vdot", "prod", "trace"};
constexpr std::array kInPlaceKernels{"relu_",        "hardswish_",  "hardtanh_",      "_fused_adamw_",
                                     "_fused_adam_", "_fused_sgd_", "_fused_adagrad_"};

/// "aten::foo" of a message about it, or "".
std::string operator_in(const std::string& text) {
  const std::size_t begin = text.find("aten::");
  if (begin == std::string::npos) return {};
  std::string name =
      text.substr(begin, text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_:.", begin) - begin);
  while (name.ends_with(':') || name.ends_with('.')) name.pop_back();
  return name;
}

}  // namespace

void install_shape_kernels() {
  // Never destroyed, and reachable to the end.
  [[gnu::used]] static const std::array<torch::Library*, 2> libraries = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
    made->impl("native_layer_norm", &layer_norm);
    made->impl("native_layer_norm_backward", &layer_norm_backward);
    made->impl("native_group_norm", &group_norm);
    made->impl("native_group_norm_backward", &group_norm_backward);
    made->impl("index_select", &index_select);
    made->impl("embedding_dense_backward", &embedding_backward);
    made->impl("convolution_overrideable", &convolution);
    made->impl("convolution_backward_overrideable", &convolution_backward);
    for (const char* name : kLikeFirst) made->impl(name, torch::CppFunction::makeFromBoxedFunction<&like_first>());
    for (const char* name : kOneNumber) made->impl(name, torch::CppFunction::makeFromBoxedFunction<&one_number>());
    for (const char* name : kInPlaceKernels) made->impl(name, torch::CppFunction::makeFromBoxedFunction<&in_place>());
    made->impl("mse_loss_backward", &mse_loss_backward);
    made->impl("var.correction", &variance);
    made->impl("std.correction", &variance);
    made->impl("addbmm", &addbmm);
    made->impl("abs.out", &absolute);
    made->impl("logical_not.out", &absolute);
    made->impl("logical_and.out", &logical);
    made->impl("logical_or.out", &logical);
    made->impl("logical_xor.out", &logical);
    made->impl("arange.start_out", &arange);
    made->impl("linspace.out", &linspace);
    made->impl("_scaled_mm", &scaled_mm);
    made->impl("_int_mm", &int_mm);
    made->impl("where.self", &where);
    auto* attention = new torch::Library(torch::Library::IMPL, "aten", std::nullopt, __FILE__, __LINE__);
    add_attention_shapes(*attention);
    return std::array{made, attention};
  }();
}

namespace {

/// Throws when `message` is about a missing shape kernel or a value.
void explain(const std::string& message, const std::string& who) {
  const std::string name = operator_in(message);
  const bool value = message.find("_local_scalar_dense") != std::string::npos ||
                     message.find("item() cannot be called on meta tensors") != std::string::npos ||
                     message.find("Cannot copy out of meta tensor") != std::string::npos;
  if (value)
    throw Error(ExitCode::failed,
                who +
                    " reads a value of a tensor (item, or a copy to the host); its memory cannot be foretold, since "
                    "that is done on shapes alone",
                "NO_SHAPE_KERNEL");
  if (name.empty() || message.find("Meta") == std::string::npos) return;
  throw Error(ExitCode::failed,
              who + " calls " + name +
                  ", for which there is no shape kernel; its memory cannot be foretold. A plugin can register one for "
                  "the dispatch key Meta in its init function",
              "NO_SHAPE_KERNEL");
}

}  // namespace

void explain_dry_failure(const std::string& who) {
  try {
    throw;
  } catch (const c10::Error& error) {
    explain(error.what_without_backtrace(), who);
    throw;
  } catch (const PluginError& error) {
    explain(error.what(), who);
    throw;
  }
}

}  // namespace trainer::planner
