/// @file The update inside backward: each parameter is stepped as its gradient arrives, and the gradient freed, so that
/// a full fine-tune never holds a second copy of the model's size in gradients. Bit-equal to AdamW::step after
/// backward.
///
/// What it cannot know is what comes later: no norm over all gradients before the first update, hence no clipping, and
/// no second micro-batch (recipe::check_rules refuses both). A value that is not finite vetoes every update from there
/// on, on the device, without a wait; updates made before it stay. Until `begin` of a further step refuses to go on,
/// the caller must stop: weights from before and after the step are then mixed.
#pragma once

#include <optim/adamw.hpp>

#include <unordered_map>

namespace trainer::optim {

class FusedBackward {
 public:
  /// Hangs a hook on every parameter of `optimizer`, which outlives this.
  explicit FusedBackward(AdamW& optimizer);
  ~FusedBackward();
  FusedBackward(const FusedBackward&) = delete;
  FusedBackward& operator=(const FusedBackward&) = delete;

  /// Before the forward of a step. Throws Error (failed) when the step before it ended inside backward.
  void begin(double lr);
  /// Before the backward of `loss` (scalar): no parameter is changed when it is not finite.
  void watch(const at::Tensor& loss);
  /// After backward: the update of the parameters that it did not reach (zero gradients, as in AdamW::step). Returns
  /// the global gradient norm, equal to gradient_norm's.
  at::Tensor finish();

  /// Whether weights from before and after a step are mixed: some were updated in one that did not finish. Waits for
  /// the device.
  [[nodiscard]] bool mixed() const;
  /// The first parameter in the order of arrival whose gradient was not finite in the last step, or "". Waits.
  [[nodiscard]] std::string first_bad() const;

 private:
  class Hook;
  void arrived(std::size_t index);
  at::Tensor& veto_on(at::Device device);

  AdamW& optimizer_;
  double lr_ = 0;
  bool in_step_ = false;
  at::Tensor loss_;                                   ///< detached, of the running step
  std::vector<std::size_t> order_;                    ///< of arrival, in the running step
  std::vector<at::Tensor> norms_;                     ///< per parameter; undefined: its gradient has not come
  std::unordered_map<at::Device, at::Tensor> vetos_;  ///< fp32 scalar per device: 1 from the first bad value on
};

}  // namespace trainer::optim
