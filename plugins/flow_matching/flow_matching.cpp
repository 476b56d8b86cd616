#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/tensor.h>
#include <trainer/sdk/error.hpp>

#include "flow_matching.hpp"
#include "timesteps.hpp"

namespace trainer::flow_matching {
namespace {

class FlowMatching final : public Objective {
 public:
  explicit FlowMatching(const Options& options)
      : timesteps_(timestep_options(options)),
        weighting_(options.get<std::string>("weighting")),
        guidance_(options.get<double>("guidance")) {}

  std::vector<std::string> provides() const override { return {"latents", "timestep", "guidance"}; }

  Example prepare(const Batch& batch, const Model& model, const Random& random) const override {
    const DiffusionTraits* traits = model.diffusion();
    if (traits == nullptr)
      throw Error(ExitCode::bad_recipe, "objective \"flow_matching\" needs a diffusion model; the model declares none");
    const at::Tensor clean = batch.latents.to(at::kFloat);
    const int64_t size = clean.size(0);
    const at::Tensor noise = random.noise(batch, clean.sizes().slice(1)).to(clean.device());
    const double mu = traits->training_mu(traits->tokens(clean.size(2), clean.size(3), clean.size(4)));
    Example example;
    std::vector<double> weights;
    for (int64_t b = 0; b < size; ++b) {
      const std::vector<double> u = random.uniform(batch, b, 2);
      const double level = noise_level(timesteps_, u[0], u[1], random.normal(batch, b, 1)[0], mu);
      const double sigma = traits->noise_from + (traits->noise_to - traits->noise_from) * level;
      example.times.push_back(sigma);
      weights.push_back(loss_weight(weighting_, sigma));
    }
    const at::Tensor sigma = at::tensor(example.times, at::kFloat).to(clean.device());
    const at::Tensor s = sigma.view({size, 1, 1, 1, 1});
    example.inputs = batch.conditioning;
    example.inputs["latents"] = (1 - s) * clean + s * noise;
    example.inputs["timestep"] = traits->time_at_noise == 1.0 ? sigma : 1 - sigma;
    if (traits->guidance_embedded) example.inputs["guidance"] = at::full({size}, guidance_, sigma.options());
    for (std::size_t i = 0; i < batch.references.size(); ++i)
      example.inputs["reference_" + std::to_string(i)] = batch.references[i];
    example.targets["velocity"] = (noise - clean) * traits->velocity_sign;
    if (weighting_ != "none") example.targets["weight"] = at::tensor(weights, at::kFloat).to(clean.device());
    return example;
  }

  at::Tensor loss(const Example& example, const Prediction& predict) const override {
    const at::Tensor prediction = predict().to(at::kFloat);
    const at::Tensor& target = example.targets.find("velocity")->second;
    const auto weight = example.targets.find("weight");
    if (weight == example.targets.end()) return at::mse_loss(prediction, target);
    const at::Tensor error = prediction - target;
    return (weight->second.view({-1, 1, 1, 1, 1}) * error * error).mean();
  }

 private:
  TimestepOptions timesteps_;
  std::string weighting_;
  double guidance_;
};

}  // namespace

std::unique_ptr<Objective> make_flow_matching(const Options& options) {
  return std::make_unique<FlowMatching>(options);
}

}  // namespace trainer::flow_matching
