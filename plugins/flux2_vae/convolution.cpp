#include "convolution.hpp"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace trainer::flux2_vae {
namespace {

using Scalars = c10::List<std::optional<at::Scalar>>;
using Pack = at::Tensor(const at::Tensor&, at::IntArrayRef padding, at::IntArrayRef stride, at::IntArrayRef dilation,
                        int64_t groups, at::OptionalIntArrayRef input_size);
using Convolve = at::Tensor(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            at::IntArrayRef padding, at::IntArrayRef stride, at::IntArrayRef dilation, int64_t groups,
                            std::string_view then, Scalars, std::optional<std::string_view>);
using Accumulate = at::Tensor&(at::Tensor& to, const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, at::IntArrayRef padding, at::IntArrayRef stride,
                               at::IntArrayRef dilation, int64_t groups, std::string_view with,
                               std::optional<at::Scalar> alpha, std::optional<std::string_view> then, Scalars,
                               std::optional<std::string_view>);

constexpr const char *kPack = "mkldnn::_reorder_convolution_weight", *kConvolve = "mkldnn::_convolution_pointwise",
                     *kAccumulate = "mkldnn::_convolution_pointwise_";

template <typename Signature>
c10::TypedOperatorHandle<Signature> onednn(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

at::Tensor reordered(const at::Tensor& weight, int64_t padding, int64_t stride) {
  static const auto reorder = onednn<Pack>(kPack);
  return reorder.call(weight.contiguous(at::MemoryFormat::ChannelsLast), {padding, padding}, {stride, stride}, {1, 1},
                      1, std::nullopt);
}

at::Tensor convolved(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t padding,
                     int64_t stride) {
  static const auto convolve = onednn<Convolve>(kConvolve);
  return convolve.call(x, weight, bias, {padding, padding}, {stride, stride}, {1, 1}, 1, "none", Scalars(), "");
}

/// The processor's abilities do not tell: oneDNN may be held back (ONEDNN_MAX_CPU_ISA), and then throws.
bool computes_bf16() {
  try {
    const at::Tensor ones = at::ones({16, 16, 3, 3}, at::kBFloat16), none = at::zeros({16}, at::kBFloat16);
    convolved(ones, reordered(ones, 1, 1), none, 1, 1);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

/// bf16 in oneDNN needs AVX-512; LibTorch asks in the same way before it takes oneDNN.
bool can_pack(const at::Tensor& weight) {
  if (!weight.defined() || !weight.is_cpu() || !at::globalContext().userEnabledMkldnn()) return false;
  static const bool there = c10::Dispatcher::singleton().findSchema({kPack, ""}) &&
                            c10::Dispatcher::singleton().findSchema({kConvolve, ""}) &&
                            c10::Dispatcher::singleton().findSchema({kAccumulate, "binary"});
  if (!there) return false;
  if (weight.scalar_type() == at::kFloat) return true;
  if (weight.scalar_type() != at::kBFloat16 || !at::cpu::is_avx512_vnni_supported()) return false;
  static const bool bf16 = computes_bf16();
  return bf16;
}

Convolution::Convolution(TensorSupply& supply, const std::string& name, int64_t in, int64_t out, int64_t kernel,
                         int64_t step)
    : weight(supply.tensor(name + ".weight", {out, in, kernel, kernel})),
      bias(supply.tensor(name + ".bias", {out})),
      stride(step),
      padding(step == 1 ? kernel / 2 : 0) {}

void Convolution::pack() {
  if (packed) return;
  if (!can_pack(weight)) {
    // As the host's products of patches read it, where the processor has none of bf16.
    if (weight.is_cpu() && weight.scalar_type() == at::kBFloat16)
      weight = weight.contiguous(at::MemoryFormat::ChannelsLast);
    return;
  }
  weight = reordered(weight, padding, stride);
  packed = true;
}

at::Tensor Convolution::operator()(const at::Tensor& x) const {
  if (!packed) return at::conv2d(x, weight, bias, stride, padding);
  return convolved(x, weight, bias, padding, stride);
}

at::Tensor Convolution::plus(const at::Tensor& x, at::Tensor sum) const {
  if (!packed || !sum.is_contiguous(at::MemoryFormat::ChannelsLast)) return (*this)(x).add_(sum);
  static const auto accumulate = onednn<Accumulate>(kAccumulate, "binary");
  accumulate.call(sum, x, weight, bias, {padding, padding}, {stride, stride}, {1, 1}, 1, "add", 1.0, std::nullopt,
                  Scalars(), std::nullopt);
  return sum;
}

}  // namespace trainer::flux2_vae
