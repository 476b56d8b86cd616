/// @file AdamW (Loshchilov & Hutter 2019) over named fp32 parameters, one fused kernel call a step. Same update as
/// torch.optim.AdamW. State is kept by parameter name, in its own dtype, so that a checkpoint restores it bit for bit.
#pragma once

#include <trainer/sdk/layers.hpp>

#include <vector>

namespace trainer::optim {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-4;
};

class AdamW {
 public:
  /// Parameters stay owned by the model; their order is the order of every reduction.
  AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options);

  /// One update with the gradients in the parameters' `.grad()`; a parameter without one is treated as having zeros.
  /// `veto` (fp32 scalar) as of step_one.
  void step(double lr, const at::Tensor& veto = {});
  /// The same update of parameter `index` alone; changes nothing when `veto` (fp32 scalar on its device) is 1, which
  /// the host need not know.
  void step_one(std::size_t index, double lr, const at::Tensor& veto);
  /// Drops all gradients.
  void zero_grad();
  /// "<parameter>.exp_avg", ".exp_avg_sq", ".step" (fp32 scalar); the tensors themselves, not copies.
  [[nodiscard]] NamedTensors state() const;
  /// Copies a state made by `state()`. Throws Error (bad_input) unless names, shapes and dtypes are the same.
  void load_state(const NamedTensors& state);
  [[nodiscard]] const std::vector<Parameter*>& parameters() const { return parameters_; }

 private:
  std::vector<Parameter*> parameters_;
  AdamWOptions options_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_, steps_;
};

/// Global L2 norm over all gradients, fp32, from per-tensor norms in parameter order (torch's clip_grad_norm_).
at::Tensor gradient_norm(const std::vector<Parameter*>& parameters);
/// Scales all gradients by min(1, max_norm / (norm + 1e-6)), without waiting for the device.
void clip_gradients(const std::vector<Parameter*>& parameters, const at::Tensor& norm, double max_norm);

}  // namespace trainer::optim
