/// @file Tries every fused CUDA kernel against the CPU's, see cuda.hpp: the same operators, on the same small numbers,
/// in sizes that fill no block.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>

#include <tuple>

#include "bindings.hpp"
#include "cuda.hpp"
#include "trial_once.hpp"

namespace trainer::fused {
namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

/// Numbers between -1 and 1 in no order that a kernel could follow.
Tensor numbers(at::IntArrayRef shape, double seed, at::ScalarType dtype, at::Device device) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return at::sin(at::arange(count, at::kDouble) * (12.9898 + seed) + seed).reshape(shape).to(dtype).to(device);
}

/// What every operator makes of them.
std::vector<Tensor> results(at::ScalarType dtype, at::Device device) {
  const auto make = [&](at::IntArrayRef shape, double seed) { return numbers(shape, seed, dtype, device); };
  const auto wide = [&](at::IntArrayRef shape, double seed) { return numbers(shape, seed, at::kFloat, device); };
  std::vector<Tensor> all;
  const Tensor x = make({2, 35, 70}, 1), g = make({2, 35, 70}, 2), shift = make({2, 1, 70}, 3),
               scale = make({2, 1, 70}, 4);
  all.push_back(operator_of<Tensor(const Tensor&, const Tensor&, const Tensor&, double)>("trainer::modulated_norm")
                    .call(x, shift, scale, 1e-6));
  const auto [grad_x, grad_shift, grad_scale] =
      operator_of<std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, double, bool)>(
          "trainer::modulated_norm_backward")
          .call(g, x, scale, 1e-6, true);
  all.insert(all.end(), {grad_x, grad_shift, grad_scale});

  const std::vector<Tensor> parts{make({2, 33, 3, 70}, 5), make({2, 40, 3, 70}, 6)},
      weights{make({70}, 7), make({70}, 8)};
  const Tensor table = wide({1, 73, 35, 2}, 9), turned = make({2, 73, 3, 70}, 10);
  all.push_back(operator_of<Tensor(at::TensorList, at::TensorList, const Tensor&, double)>("trainer::norm_rope")
                    .call(parts, weights, table, 1e-6));
  for (const Tensor& one :
       operator_of<std::vector<Tensor>(const Tensor&, at::TensorList, at::TensorList, const Tensor&, double, bool)>(
           "trainer::norm_rope_backward")
           .call(turned, parts, weights, table, 1e-6, true))
    all.push_back(one);

  const Tensor gates = make({9, 2 * 300}, 11), before = make({9, 5}, 12), grad = make({9, 300}, 13);
  all.push_back(operator_of<Tensor(const Tensor&, const Maybe&)>("trainer::swiglu").call(gates, before));
  all.push_back(operator_of<Tensor(const Tensor&, const Tensor&)>("trainer::swiglu_backward").call(grad, gates));

  all.push_back(
      operator_of<Tensor(const Tensor&, const Tensor&, const Tensor&)>("trainer::gated_residual").call(x, scale, g));
  const auto [grad_y, grad_gate] = operator_of<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Maybe&)>(
                                       "trainer::gated_residual_backward")
                                       .call(g, scale, x);
  all.insert(all.end(), {grad_y, grad_gate});

  const Tensor data = make({70, 300}, 14), weight = wide({19, 300}, 15), low = wide({70, 19}, 16);
  all.push_back(
      operator_of<Tensor(const Tensor&, const Tensor&, double)>("trainer::low_rank_down").call(data, weight, 0.5));
  for (const Maybe& base : {Maybe(data), Maybe()})
    all.push_back(
        operator_of<Tensor(const Tensor&, const Tensor&, const Maybe&, double, at::ScalarType)>("trainer::low_rank_up")
            .call(low, weight, base, 0.5, dtype));
  Tensor base = data.clone();
  all.push_back(operator_of<Tensor&(const Tensor&, const Tensor&, double, Tensor&)>("trainer::low_rank_up_")
                    .call(low, weight, 0.5, base));
  all.push_back(
      operator_of<Tensor(const Tensor&, const Tensor&, double)>("trainer::low_rank_outer").call(low, data, 0.5));
  return all;
}

bool try_on(at::Device device) {
  if (cuda_kernels() == nullptr) return false;
  const at::AutoDispatchBelowADInplaceOrView below;
  try {
    for (const auto& [dtype, limit] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2e-2}}) {
      const std::vector<Tensor> expected = results(dtype, at::kCPU), got = results(dtype, device);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const Tensor difference = (got[i].to(at::kCPU, at::kDouble) - expected[i].to(at::kDouble)).abs().max();
        const double size = expected[i].to(at::kDouble).abs().max().item<double>();
        if (const double error = difference.item<double>() / size; !(error <= limit))
          throw std::runtime_error("result " + std::to_string(i) + " is off by " + std::to_string(error));
      }
    }
  } catch (const std::exception& error) {
    TORCH_WARN("the fused CUDA kernels do not compute on ", device,
               " what the CPU does, LibTorch's operators are used "
               "instead: ",
               error.what());
    return false;
  }
  return true;
}

}  // namespace

bool cuda_is_trusted(at::Device device) {
  static TrialOnce trial(try_on);
  return trial.passed(device);
}

}  // namespace trainer::fused
