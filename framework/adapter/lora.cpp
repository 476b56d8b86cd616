#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <adapter/lora.hpp>

#include <cmath>

namespace trainer::adapter {
namespace {

/// y + scale (x A^T) B^T in A's dtype, rounded once to y's. Of its own because of what it keeps: x as it came, which
/// other layers share, and x A^T; autograd would keep x in A's dtype for every layer, and cast the gradient of y back
/// and forth.
struct LoraSum : torch::autograd::Function<LoraSum> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& y,
                            const at::Tensor& a, const at::Tensor& b, double scale) {
    const at::Tensor low = at::mm(x.to(a.scalar_type()), a.t());
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, low, a, b});
    ctx->saved_data["scale"] = scale;
    // One call for the second product, the scale and the sum; in fp32 nothing is cast.
    return at::addmm(y.to(a.scalar_type()), low, b.t(), /*beta=*/1, scale).to(y.scalar_type());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    if (!grads[0].defined()) return torch::autograd::variable_list(5);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &low = saved[1], &a = saved[2], &b = saved[3];
    const double scale = ctx->saved_data["scale"].toDouble();
    const at::Tensor grad = grads[0].to(a.scalar_type());
    const at::Tensor grad_b = ctx->needs_input_grad(3) ? at::mm(grad.t(), low) * scale : at::Tensor();
    const at::Tensor grad_low = at::mm(grad, b) * scale;
    const at::Tensor grad_a = ctx->needs_input_grad(2) ? at::mm(grad_low.t(), x.to(a.scalar_type())) : at::Tensor();
    const at::Tensor grad_x = ctx->needs_input_grad(0) ? at::mm(grad_low, a).to(x.scalar_type()) : at::Tensor();
    return {grad_x, grads[0], grad_a, grad_b, at::Tensor()};
  }
};

class LoraLayer final : public LinearAdapter {
 public:
  LoraLayer(const std::string& layer, at::Tensor a, at::Tensor b, double scale)
      : a_(layer + ".lora_A.weight", std::move(a)), b_(layer + ".lora_B.weight", std::move(b)), scale_(scale) {}

  at::Tensor apply(const at::Tensor& x, const at::Tensor& y) const override {
    return LoraSum::apply(x, y, a_.get(), b_.get(), scale_);
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
