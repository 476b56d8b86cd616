/// @file What a memory strategy promises, checked at every call: used by proofs, where a broken promise must name the
/// plugin that broke it, and not only show as a loss that differs.
#pragma once

#include <trainer/sdk/memory.hpp>

#include <map>
#include <memory>
#include <string>

namespace trainer::execution {

/// Every tensor that comes back has the bits, the dtype, the shape and the device of the one that went in. Keeps
/// copies.
class CheckedStore final : public ActivationStore {
 public:
  /// `plugin` is who is named.
  CheckedStore(std::unique_ptr<ActivationStore> inner, std::string plugin)
      : inner_(std::move(inner)), plugin_(std::move(plugin)) {}
  std::shared_ptr<void> put(const at::Tensor& tensor, const Site& site) override;
  at::Tensor take(const std::shared_ptr<void>& handle, const Site& site) override;

 private:
  std::unique_ptr<ActivationStore> inner_;
  std::string plugin_;
};

/// While a block runs, its frozen weights hold the bits that they held before the first step.
class CheckedResidency final : public WeightResidency {
 public:
  CheckedResidency(std::unique_ptr<WeightResidency> inner, std::string plugin)
      : inner_(std::move(inner)), plugin_(std::move(plugin)) {}
  void plan(std::span<Block* const> blocks) override;
  void before(const Site& site, Pass pass) override;
  void after(const Site& site, Pass pass) noexcept override { inner_->after(site, pass); }

 private:
  std::unique_ptr<WeightResidency> inner_;
  std::string plugin_;
  std::map<std::string, std::string> hashes_;  ///< by canonical name of the layer
};

/// Every packed weight multiplies as its own `dense()` does: forward and backward products of random rows are bit-equal
/// to those of the dense weight or, where the plugin declares rounding, within it. Checked as the weight is packed.
class CheckedFormat final : public WeightFormat {
 public:
  /// `rounding`: norm of the difference over the norm; 0: bit-equal.
  CheckedFormat(std::unique_ptr<WeightFormat> inner, std::string plugin, double rounding)
      : inner_(std::move(inner)), plugin_(std::move(plugin)), rounding_(rounding) {}
  std::unique_ptr<FrozenWeight> pack(const LinearState& linear, const std::string& name, WeightSource& source,
                                     at::ScalarType compute) override;
  [[nodiscard]] int64_t bytes(const LinearState& linear, at::ScalarType compute) const override {
    return inner_->bytes(linear, compute);
  }

 private:
  void check(const std::string& call, const std::string& layer, const at::Tensor& got,
             const at::Tensor& expected) const;

  std::unique_ptr<WeightFormat> inner_;
  std::string plugin_;
  double rounding_;
};

}  // namespace trainer::execution
