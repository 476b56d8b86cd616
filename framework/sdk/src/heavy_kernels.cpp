/// @file The operators that count as heavy, and the kernel that brings each of them to the active region.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "op_region.hpp"

namespace trainer::recompute {
namespace {

/// Functional overloads only; the composites (linear, matmul, scaled_dot_product_attention) reach these.
constexpr std::array kHeavyOps{"mm",
                               "addmm",
                               "bmm",
                               "baddbmm",
                               "mv",
                               "addmv",
                               "addbmm",
                               "_addmm_activation",
                               "mm.dtype",
                               "addmm.dtype",
                               "bmm.dtype",
                               "convolution",
                               "_scaled_mm",
                               "_scaled_mm_v2",
                               "_grouped_mm",
                               "_int_mm",
                               "_scaled_dot_product_flash_attention_for_cpu",
                               "_scaled_dot_product_flash_attention",
                               "_scaled_dot_product_efficient_attention",
                               "_scaled_dot_product_cudnn_attention",
                               "_scaled_dot_product_fused_attention_overrideable"};

/// Arguments in which a forward without grad and a recompute with grad may differ: whether the log-sum-exp is wanted.
bool is_grad_dependent(const std::string& name) { return name == "compute_log_sumexp" || name == "compute_logsumexp"; }

std::string describe(const c10::IValue& value) {
  if (value.isTensor()) return text_of(value.toTensor());
  std::ostringstream text;
  text << value;
  return text.str();
}

std::string describe_arguments(const c10::FunctionSchema& schema, const torch::jit::Stack& stack, std::size_t first) {
  std::string text = "(";
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (is_grad_dependent(schema.arguments()[i].name())) continue;
    text += (text.size() > 1 ? ", " : "") + describe(stack[first + i]);
  }
  return text + ")";
}

/// Multiplications and additions for one element of the (first) output.
double flops_per_element(const std::string& name, const torch::jit::Stack& stack, std::size_t first) {
  const auto tensor = [&](std::size_t i) { return stack[first + i].toTensor(); };
  if (name.find("attention") != std::string::npos)  // q k^T and p v
    return 4.0 * static_cast<double>(tensor(1).size(-2));
  if (name == "convolution")
    return 2.0 * static_cast<double>(tensor(1).numel()) / static_cast<double>(tensor(1).size(0));
  const std::size_t left = name.find("add") != std::string::npos ? 1 : 0;
  return 2.0 * static_cast<double>(tensor(left).size(-1));
}

void heavy_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::after_ADInplaceOrView_keyset;
  OpRegion* region = active_region();
  if (region == nullptr) {
    op.redispatchBoxed(below, stack);
    return;
  }
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t first = stack->size() - schema.arguments().size();
  const std::string name = schema.name().substr(schema.name().find("::") + 2);
  const std::string arguments = describe_arguments(schema, *stack, first);
  const double flops = flops_per_element(name, *stack, first);
  OpRegion::Outputs outputs = region->call(name, arguments, flops, [&] {
    // A kept attention is only of use with its log-sum-exp, which a call without grad does not ask for.
    for (std::size_t i = 0; i < schema.arguments().size(); ++i)
      if (is_grad_dependent(schema.arguments()[i].name())) (*stack)[first + i] = true;
    op.redispatchBoxed(below, stack);
    OpRegion::Outputs made(stack->end() - static_cast<std::ptrdiff_t>(schema.returns().size()), stack->end());
    stack->resize(first);
    return made;
  });
  stack->resize(first);
  for (c10::IValue& output : outputs) stack->push_back(std::move(output));
}

}  // namespace

void install_heavy_kernels() {
  // Registered for the life of the process, from a function: never by a static object.
  static torch::Library* library = [] {
    auto* made =
        new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::ADInplaceOrView, __FILE__, __LINE__);
    for (const char* name : kHeavyOps) made->impl(name, torch::CppFunction::makeFromBoxedFunction<&heavy_kernel>());
    return made;
  }();
  static_cast<void>(library);
}

}  // namespace trainer::recompute
