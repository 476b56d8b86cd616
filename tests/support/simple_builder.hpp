/// @file The smallest ModelBuilder: dense weights out of any source, frozen or all trained. For tests of model plugins,
/// so that they depend on the SDK and not on the training loop.
#pragma once

#include <trainer/sdk/model.hpp>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace trainer::testing {

class SimpleBuilder final : public ModelBuilder {
 public:
  /// Borrows `source`. `trained`: every weight is a leaf that requires grad, in `dtype`.
  SimpleBuilder(WeightSource& source, at::ScalarType dtype, bool trained = false)
      : source_(source), dtype_(dtype), trained_(trained) {}

  Linear linear(const std::string& name, int64_t in, int64_t out, bool bias) override {
    auto state = std::make_shared<LinearState>();
    state->name = name;
    state->in = in;
    state->out = out;
    if (trained_)
      state->weight = parameter(name + ".weight", {out, in});
    else
      state->frozen = std::make_shared<DenseWeight>(load(name + ".weight", {out, in}));
    if (bias) state->bias = parameter(name + ".bias", {out});
    linears.emplace_back(state);
    return linears.back();
  }
  ParameterPtr parameter(const std::string& name, const std::vector<int64_t>& shape) override {
    parameters.push_back(std::make_shared<Parameter>(name, load(name, shape).requires_grad_(trained_)));
    return parameters.back();
  }
  [[nodiscard]] at::ScalarType dtype() const override { return dtype_; }
  [[nodiscard]] at::Device device() const override { return at::kCPU; }

  std::vector<Linear> linears;           ///< in creation order
  std::vector<ParameterPtr> parameters;  ///< when trained, weights of linear layers too

 private:
  at::Tensor load(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorInfo* info = source_.find(name);
    if (info == nullptr || info->shape != shape) throw std::runtime_error("no \"" + name + "\" of the asked shape");
    const at::Tensor stored = source_.read(name);
    return stored.to(stored.options().dtype(dtype_), /*non_blocking=*/false, /*copy=*/true);
  }
  WeightSource& source_;
  at::ScalarType dtype_;
  bool trained_;
};

}  // namespace trainer::testing
