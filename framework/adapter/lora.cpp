#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <adapter/lora.hpp>

#include <cmath>

namespace trainer::adapter {
namespace {

class LoraLayer final : public LinearAdapter {
 public:
  LoraLayer(const std::string& layer, at::Tensor a, at::Tensor b, double scale)
      : a_(layer + ".lora_A.weight", std::move(a)), b_(layer + ".lora_B.weight", std::move(b)), scale_(scale) {}

  at::Tensor apply(const at::Tensor& x, const at::Tensor& y) const override {
    const at::Tensor& a = a_.get();
    const at::Tensor& b = b_.get();
    const at::Tensor low = at::mm(x.to(a.scalar_type()), a.t());
    // One call for the second product, the scale and the sum; in fp32 nothing is cast.
    return at::addmm(y.to(a.scalar_type()), low, b.t(), /*beta=*/1, /*alpha=*/scale_).to(y.scalar_type());
  }
  std::vector<Parameter*> parameters() override { return {&a_, &b_}; }
  [[nodiscard]] const Parameter& a() const { return a_; }
  [[nodiscard]] const Parameter& b() const { return b_; }
  [[nodiscard]] double scale() const { return scale_; }

 private:
  Parameter a_, b_;
  double scale_;
};

class Lora final : public Adapter {
 public:
  explicit Lora(const Options& options)
      : rank_(options.get<int64_t>("rank")),
        alpha_(options.get<double>("alpha")),
        init_(options.get<std::string>("init")) {
    if (const auto* one = options.values().at("targets").get_if<std::string>()) {
      if (*one == "all")
        targets_ = {"*"};
      else if (*one != "default")
        targets_ = {*one};
    } else {
      targets_ = options.list<std::string>("targets");
    }
  }

  std::unique_ptr<LinearAdapter> attach(const LinearState& state, const Init& uniform,
                                        const InitNormal& normal) const override {
    const std::vector<int64_t> shape{rank_, state.in};
    const double bound = 1.0 / std::sqrt(static_cast<double>(state.in));
    at::Tensor a =
        init_ == "gaussian" ? normal(0.0, 1.0 / static_cast<double>(rank_), shape) : uniform(-bound, bound, shape);
    at::Tensor b = at::zeros({state.out, rank_}, a.options());
    return std::make_unique<LoraLayer>(state.name, a.requires_grad_(true), b.requires_grad_(true),
                                       alpha_ / static_cast<double>(rank_));
  }
  std::vector<std::string> targets() const override { return targets_; }

  /// alpha / rank is folded into B, so that readers that know no alpha apply the right strength.
  NamedTensors export_layer(const LinearState& state) const override {
    const auto& layer = dynamic_cast<const LoraLayer&>(*state.adapter);
    NamedTensors tensors;
    tensors[layer.a().name()] = layer.a().value().detach().cpu();
    tensors[layer.b().name()] = (layer.b().value().detach() * layer.scale()).cpu();
    return tensors;
  }
  std::string describe() const override {
    std::string alpha = std::to_string(alpha_);
    alpha.erase(alpha.find_last_not_of('0') + 1);
    if (alpha.back() == '.') alpha.pop_back();
    return "LoRA rank " + std::to_string(rank_) + ", alpha " + alpha;
  }

 private:
  int64_t rank_;
  double alpha_;
  std::string init_;
  std::vector<std::string> targets_;
};

}  // namespace

void register_lora(Registrar& registrar) {
  registrar.add(AdapterComponent{
      "lora", [](const Options& options) -> std::unique_ptr<Adapter> { return std::make_unique<Lora>(options); }});
}

}  // namespace trainer::adapter
