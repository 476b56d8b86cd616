/// @file The operators that count as heavy, and the kernel that brings each of them to the active region.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "op_region.hpp"

namespace trainer {
namespace {

thread_local FlopCounter* counter = nullptr;

/// Nothing is counted as long as it lives.
class CounterAside {
 public:
  CounterAside() : before_(std::exchange(counter, nullptr)) {}
  ~CounterAside() { counter = before_; }
  CounterAside(const CounterAside&) = delete;
  CounterAside& operator=(const CounterAside&) = delete;

 private:
  FlopCounter* before_;
};

}  // namespace

FlopCounter::FlopCounter() : outer_(std::exchange(counter, this)) { recompute::install_heavy_kernels(); }
FlopCounter::~FlopCounter() { counter = outer_; }
void count_flops(double flops) {
  for (FlopCounter* one = counter; one != nullptr; one = one->outer_) one->flops_ += flops;
}

namespace recompute {
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
                               "_grouped_mm",
                               "_scaled_dot_product_flash_attention_for_cpu",
                               "_scaled_dot_product_flash_attention",
                               "_scaled_dot_product_efficient_attention",
                               "_scaled_dot_product_cudnn_attention",
                               "_scaled_dot_product_fused_attention_overrideable"};

/// Without a derivative. Their kernels for autograd go past ADInplaceOrView, so these are met at autograd's own keys.
constexpr std::array kHeavyOpsWithoutGradient{"_scaled_mm", "_scaled_mm_v2", "_int_mm"};
constexpr std::array kAutogradKeys{c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA,
                                   c10::DispatchKey::AutogradMeta};

/// Of the SDK's own library "trainer" (fused/low_rank.cpp).
constexpr std::array kOwnHeavyOps{"low_rank_down", "low_rank_up", "low_rank_up_", "low_rank_outer"};

/// Never kept or elided, counted only.
constexpr std::array kBackwardOps{"convolution_backward",
                                  "_scaled_dot_product_flash_attention_for_cpu_backward",
                                  "_scaled_dot_product_flash_attention_backward",
                                  "_scaled_dot_product_efficient_attention_backward",
                                  "_scaled_dot_product_cudnn_attention_backward",
                                  "_scaled_dot_product_fused_attention_overrideable_backward"};

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
  if (name == "low_rank_outer") return 2.0 * static_cast<double>(tensor(0).size(0));
  const std::size_t left = name.find("add") != std::string::npos ? 1 : 0;
  return 2.0 * static_cast<double>(tensor(left).size(-1));
}

/// Of a backward operator: what its forward did, once for every gradient, and an attention's forward again.
double backward_flops(const std::string& name, const torch::jit::Stack& stack, std::size_t first) {
  const auto tensor = [&](std::size_t i) { return stack[first + i].toTensor(); };
  const auto numel = [&](std::size_t i) { return static_cast<double>(tensor(i).numel()); };
  if (name == "convolution_backward") return 4.0 * numel(0) * numel(2) / static_cast<double>(tensor(2).size(0));
  return 10.0 * numel(0) * static_cast<double>(tensor(2).size(-2));
}

void counted_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (counter != nullptr)
    count_flops(backward_flops(op.schema().operator_name().name.substr(6), *stack,
                               stack->size() - op.schema().arguments().size()));
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
}

/// The operator itself; counts what it did, once: some are made of others (a product of 8-bit floats on the CPU).
void run_counted(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack, double flops) {
  {
    const CounterAside inner;
    op.redispatchBoxed(below, stack);
  }
  const c10::IValue& output = (*stack)[stack->size() - op.schema().returns().size()];
  count_flops(flops * static_cast<double>(output.toTensor().numel()));
}

void heavy_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::after_ADInplaceOrView_keyset;
  const bool in_region = active_region() != nullptr, in_trace = active_trace() != nullptr;
  if (!in_region && !in_trace && counter == nullptr) {
    op.redispatchBoxed(below, stack);
    return;
  }
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t first = stack->size() - schema.arguments().size();
  const std::string name = schema.name().substr(schema.name().find("::") + 2);
  const double flops = flops_per_element(name, *stack, first);
  if (!in_region && !in_trace) {
    run_counted(op, below, stack, flops);
    return;
  }
  const std::string arguments = describe_arguments(schema, *stack, first);
  OpRegion::Outputs outputs = heavy_call(name, arguments, flops, [&] {
    // A kept attention is only of use with its log-sum-exp, which a call without grad does not ask for.
    for (std::size_t i = 0; in_region && i < schema.arguments().size(); ++i)
      if (is_grad_dependent(schema.arguments()[i].name())) (*stack)[first + i] = true;
    run_counted(op, below, stack, flops);
    OpRegion::Outputs made(stack->end() - static_cast<std::ptrdiff_t>(schema.returns().size()), stack->end());
    stack->resize(first);
    return made;
  });
  stack->resize(first);
  for (c10::IValue& output : outputs) stack->push_back(std::move(output));
}

}  // namespace

void install_heavy_kernels() {
  // Registered for the life of the process, from a function: never by a static object. Used: the pointer must be there
  // for leak checkers, though nothing reads it.
  [[gnu::used]] static torch::Library* library = [] {
    auto* made =
        new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::ADInplaceOrView, __FILE__, __LINE__);
    for (const char* name : kHeavyOps) made->impl(name, torch::CppFunction::makeFromBoxedFunction<&heavy_kernel>());
    for (const char* name : kBackwardOps)
      made->impl(name, torch::CppFunction::makeFromBoxedFunction<&counted_kernel>());
    return made;
  }();
  static_cast<void>(library);
  // An array, which outlives the program's end as the pointers beside it do: the libraries are never destroyed.
  [[gnu::used]] static const auto without_gradient = [] {
    std::array<torch::Library*, kAutogradKeys.size()> list{};
    for (std::size_t i = 0; i < list.size(); ++i) {
      list[i] = new torch::Library(torch::Library::IMPL, "aten", kAutogradKeys[i], __FILE__, __LINE__);
      for (const char* name : kHeavyOpsWithoutGradient)
        list[i]->impl(name, torch::CppFunction::makeFromBoxedFunction<&heavy_kernel>());
    }
    return list;
  }();
  static_cast<void>(without_gradient);
  [[gnu::used]] static torch::Library* own = [] {
    auto* made =
        new torch::Library(torch::Library::IMPL, "trainer", c10::DispatchKey::ADInplaceOrView, __FILE__, __LINE__);
    for (const char* name : kOwnHeavyOps) made->impl(name, torch::CppFunction::makeFromBoxedFunction<&heavy_kernel>());
    return made;
  }();
  static_cast<void>(own);
}

}  // namespace recompute
}  // namespace trainer
