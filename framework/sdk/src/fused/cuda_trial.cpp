/// @file Tries every fused CUDA kernel against the CPU's, see cuda.hpp: the same operators, on the same small numbers,
/// in sizes that fill no block. A family whose trial fails costs the others nothing.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "bindings.hpp"
#include "cuda.hpp"
#include "trial_checks.hpp"
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

/// Makes the inputs of one trial: of a dtype, on a device.
struct Inputs {
  at::ScalarType dtype;
  at::Device device;
  [[nodiscard]] Tensor make(at::IntArrayRef shape, double seed) const { return numbers(shape, seed, dtype, device); }
  [[nodiscard]] Tensor wide(at::IntArrayRef shape, double seed) const {
    return numbers(shape, seed, at::kFloat, device);
  }
};
using Results = std::vector<Tensor>;

Results modulated_norm_results(const Inputs& in) {
  const Tensor x = in.make({2, 35, 70}, 1), g = in.make({2, 35, 70}, 2), shift = in.make({2, 1, 70}, 3),
               scale = in.make({2, 1, 70}, 4);
  Results all{operator_of<Tensor(const Tensor&, const Tensor&, const Tensor&, double)>("trainer::modulated_norm")
                  .call(x, shift, scale, 1e-6)};
  const auto [grad_x, grad_shift, grad_scale] =
      operator_of<std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, double, bool)>(
          "trainer::modulated_norm_backward")
          .call(g, x, scale, 1e-6, true);
  all.insert(all.end(), {grad_x, grad_shift, grad_scale});
  return all;
}

Results norm_rope_results(const Inputs& in) {
  const std::vector<Tensor> parts{in.make({2, 33, 3, 70}, 5), in.make({2, 40, 3, 70}, 6)},
      weights{in.make({70}, 7), in.make({70}, 8)};
  const Tensor table = in.wide({1, 73, 35, 2}, 9), turned = in.make({2, 73, 3, 70}, 10);
  Results all{operator_of<Tensor(at::TensorList, at::TensorList, const Tensor&, double)>("trainer::norm_rope")
                  .call(parts, weights, table, 1e-6)};
  for (const Tensor& one :
       operator_of<std::vector<Tensor>(const Tensor&, at::TensorList, at::TensorList, const Tensor&, double, bool)>(
           "trainer::norm_rope_backward")
           .call(turned, parts, weights, table, 1e-6, true))
    all.push_back(one);
  return all;
}

Results swiglu_results(const Inputs& in) {
  Results all;
  for (const auto& [width, others] : {std::pair{300, 5}, std::pair{304, 16}}) {  // element by element, and in packs
    const Tensor gates = in.make({9, 2 * width}, 11), before = in.make({9, others}, 12), grad = in.make({9, width}, 13);
    all.push_back(operator_of<Tensor(const Tensor&, const Maybe&)>("trainer::swiglu").call(gates, before));
    all.push_back(operator_of<Tensor(const Tensor&, const Tensor&)>("trainer::swiglu_backward").call(grad, gates));
  }
  return all;
}

Results gated_residual_results(const Inputs& in) {
  Results all;
  for (const int64_t width : {70, 72}) {  // element by element, and in packs
    const Tensor x = in.make({2, 35, width}, 1), y = in.make({2, 35, width}, 2), gate = in.make({2, 1, width}, 4);
    all.push_back(
        operator_of<Tensor(const Tensor&, const Tensor&, const Tensor&)>("trainer::gated_residual").call(x, gate, y));
    const auto [grad_y, grad_gate] =
        operator_of<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Maybe&)>(
            "trainer::gated_residual_backward")
            .call(y, gate, x);
    all.insert(all.end(), {grad_y, grad_gate});
  }
  return all;
}

Results low_rank_results(const Inputs& in) {
  const Tensor data = in.make({70, 300}, 14), weight = in.wide({19, 300}, 15), low = in.wide({70, 19}, 16);
  const auto down = operator_of<Tensor(const Tensor&, const Tensor&, double)>("trainer::low_rank_down");
  // The second weight as LoRA's B comes: a transposed view.
  Results all{down.call(data, weight, 0.5), down.call(data, weight.t().contiguous().t(), 0.5)};
  for (const Maybe& base : {Maybe(data), Maybe()})
    all.push_back(
        operator_of<Tensor(const Tensor&, const Tensor&, const Maybe&, double, at::ScalarType)>("trainer::low_rank_up")
            .call(low, weight, base, 0.5, in.dtype));
  Tensor base = data.clone();
  all.push_back(operator_of<Tensor&(const Tensor&, const Tensor&, double, Tensor&)>("trainer::low_rank_up_")
                    .call(low, weight.t().contiguous().t(), 0.5, base));
  all.push_back(
      operator_of<Tensor(const Tensor&, const Tensor&, double)>("trainer::low_rank_outer").call(low, data, 0.5));
  // Each part by itself: in a product a wrong last one would pass for rounding.
  const auto split = operator_of<Tensor(const Tensor&, at::IntArrayRef, double, bool)>("trainer::bf16_parts");
  for (const bool beside : {false, true})
    for (const Tensor& part : split.call(weight, {0, 1, 2}, 0.5, beside).chunk(3, beside ? 1 : 0)) all.push_back(part);
  return all;
}

constexpr std::array kFamilies{std::pair{"modulated_norm", &modulated_norm_results},
                               std::pair{"norm_rope", &norm_rope_results}, std::pair{"swiglu", &swiglu_results},
                               std::pair{"gated_residual", &gated_residual_results},
                               std::pair{"low_rank", &low_rank_results}};

template <std::size_t family>
bool try_on(at::Device device) {
  const auto& [name, results] = kFamilies[family];
  if (cuda_kernels() == nullptr) return false;
  const at::AutoDispatchBelowADInplaceOrView below;
  try {
    const FullPrecision without_tf32;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      require_same_results(results({dtype, device}), results({dtype, at::kCPU}));
  } catch (const std::exception& error) {
    TORCH_WARN(
        "the CUDA kernels of ", name, " do not compute on ", device,
        " what the CPU does (TF32 was off for the comparison), LibTorch's operators are used instead: ", error.what());
    return false;
  }
  return true;
}

std::vector<std::string> states(at::Device device) {
  const auto state = [&](bool trusted) {
    return device.is_cpu() ? "the CPU's" : cuda_kernels() == nullptr ? "missing" : trusted ? "used" : "distrusted";
  };
  std::vector<std::string> list;
  for (std::size_t i = 0; i < kFamilies.size(); ++i)
    list.insert(list.end(),
                {kFamilies[i].first, state(device.is_cuda() && cuda_is_trusted(device, static_cast<Family>(i)))});
  list.insert(list.end(), {"eight_bits", state(device.is_cuda() && eight_bits_are_trusted(device))});
  return list;
}

}  // namespace

bool cuda_is_trusted(at::Device device, Family family) {
  static std::array<TrialOnce, kFamilies.size()> trials{
      TrialOnce(try_on<0>), TrialOnce(try_on<1>), TrialOnce(try_on<2>), TrialOnce(try_on<3>), TrialOnce(try_on<4>)};
  return trials[static_cast<std::size_t>(family)].passed(device);
}

void install_kernel_report(torch::Library& library) { library.def("cuda_kernels(Device device) -> str[]", &states); }

}  // namespace trainer::fused
