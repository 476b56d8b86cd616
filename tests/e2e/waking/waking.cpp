/// @file A low-rank adapter that breaks the promise of being the same function in every step: from step
/// TRAINER_TEST_WAKE_AT on, its gradient reads the value that the layer computed without it, which nothing read before.
#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/zeros.h>
#include <trainer/sdk/plugin.hpp>

#include <cstdlib>
#include <limits>
#include <utility>

namespace {

using namespace trainer;

int64_t wake_at() {
  const char* const text = std::getenv("TRAINER_TEST_WAKE_AT");
  return text == nullptr ? std::numeric_limits<int64_t>::max() : std::atoll(text);
}

class Layer final : public LinearAdapter {
 public:
  Layer(std::shared_ptr<Parameter> down, std::shared_ptr<Parameter> up) : down_(std::move(down)), up_(std::move(up)) {}
  at::Tensor apply(const at::Tensor& x, const at::Tensor& y) const override {
    const at::Tensor update = at::mm(at::mm(x, down_->get().t()), up_->get().t());
    count_step();
    if (step_ < wake_at()) return y + update;
    // Bounded whatever stands in the values' place, so that nothing but the test of the elision can stop the run.
    const auto bounded = [](const at::Tensor& tensor) { return at::clamp(at::nan_to_num(tensor), -1, 1); };
    return y + update + bounded(update) * bounded(y) * 1e-3;
  }
  std::vector<Parameter*> parameters() override { return {down_.get(), up_.get()}; }

 private:
  /// Every optimiser step changes the matrix.
  void count_step() const {
    const double sum = up_->value().detach().abs().sum().item<double>();
    if (sum != std::exchange(sum_, sum)) ++step_;
  }
  std::shared_ptr<Parameter> down_, up_;
  mutable double sum_ = -1;
  mutable int64_t step_ = 0;
};

class Waking final : public Adapter {
 public:
  explicit Waking(const Options& options) : rank_(options.get<int64_t>("rank")) {}
  std::unique_ptr<LinearAdapter> attach(const LinearState& state, const AttachContext& context) const override {
    const at::Tensor down = context.uniform(-0.1, 0.1, {rank_, state.in});
    const auto trained = [&](const char* name, const at::Tensor& value) {
      return std::make_shared<Parameter>(state.name + name, value.requires_grad_(true));
    };
    const at::Tensor up = at::zeros({state.out, rank_}, down.options());
    return std::make_unique<Layer>(trained(".down", down), trained(".up", up));
  }
  [[nodiscard]] std::vector<std::string> targets() const override { return {}; }
  [[nodiscard]] NamedTensors export_layer(const LinearState& state) const override {
    NamedTensors tensors;
    for (const Parameter* parameter : state.adapter->parameters())
      tensors[parameter->name()] = parameter->value().detach().cpu();
    return tensors;
  }
  [[nodiscard]] std::string describe() const override { return "an adapter that wakes up"; }

 private:
  int64_t rank_;
};

void init(Registrar& registrar) {
  registrar.add(AdapterComponent{
      "waking", [](const Options& options) -> std::unique_ptr<Adapter> { return std::make_unique<Waking>(options); }});
}

}  // namespace

TRAINER_PLUGIN("waking", "0.1.0", init)
