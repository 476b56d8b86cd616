#include "toy_model.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>

#include <base/rng.hpp>
#include <cmath>

namespace trainer::testing {
namespace {

class ToyBlock final : public Block {
 public:
  ToyBlock(ModelBuilder& build, const std::string& name, int64_t width)
      : Block(name, "toy"),
        up_(own(build.linear(name + ".up", width, 2 * width, true))),
        down_(own(build.linear(name + ".down", 2 * width, width))),
        scale_(own(build.parameter(name + ".scale", {width}))) {}
  std::vector<at::Tensor> forward(const Flow& flow) override {
    const at::Tensor& x = flow.carried[0];
    const at::Tensor& time = flow.shared[0];
    return {x + down_(at::tanh(up_(x * scale_->get(x.scalar_type()) + time.unsqueeze(1))))};
  }

 private:
  Linear up_, down_;
  ParameterPtr scale_;
};

}  // namespace

NamedTensors toy_weights(const ToySizes& sizes, uint64_t seed) {
  NamedTensors weights;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    at::Tensor tensor = at::empty(shape, at::kFloat);
    KeyedRng rng(seed, RngStream::synthetic, 0, weights.size());
    rng.fill_normal({tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())});
    if (shape.size() == 2) tensor.div_(std::sqrt(static_cast<double>(shape[1])));
    weights.emplace(name, tensor);
  };
  const int64_t width = sizes.width;
  add("embed.weight", {width, sizes.channels});
  add("text.weight", {width, sizes.text});
  add("time.weight", {width, 2});
  for (int64_t i = 0; i < sizes.blocks; ++i) {
    const std::string name = "block." + std::to_string(i);
    add(name + ".up.weight", {2 * width, width});
    add(name + ".up.bias", {2 * width});
    add(name + ".down.weight", {width, 2 * width});
    add(name + ".scale", {width});
  }
  add("norm.weight", {width});
  add("head.weight", {sizes.channels, width});
  return weights;
}

ToyModel::ToyModel(ModelBuilder& build, const ToySizes& sizes)
    : sizes_(sizes),
      embed_(build.linear("embed", sizes.channels, sizes.width)),
      text_(build.linear("text", sizes.text, sizes.width)),
      time_(build.linear("time", 2, sizes.width)),
      head_(build.linear("head", sizes.width, sizes.channels)),
      norm_(build.parameter("norm.weight", {sizes.width})) {
  for (int64_t i = 0; i < sizes.blocks; ++i) {
    blocks_.push_back(std::make_unique<ToyBlock>(build, "block." + std::to_string(i), sizes.width));
    borrowed_.push_back(blocks_.back().get());
  }
  traits_.time_at_noise = sizes.time_at_noise;
  traits_.velocity_sign = sizes.velocity_sign;
  traits_.latent_channels = sizes.channels;
  traits_.guidance_embedded = sizes.guidance;
  traits_.training_mu = [](int64_t tokens) { return 0.01 * static_cast<double>(tokens); };
  traits_.tokens = [](int64_t frames, int64_t height, int64_t width) { return frames * height * width; };
}

std::vector<InputSpec> ToyModel::inputs() const {
  return {{"latents", "noisy"}, {"timestep", "0..1"}, {"prompt_embeds", "text", false}, {"guidance", "", false}};
}

Flow ToyModel::prologue(const NamedTensors& inputs) {
  const at::Tensor& latents = inputs.find("latents")->second;
  const at::Tensor& time = inputs.find("timestep")->second;
  at::Tensor x = embed_(latents.flatten(2).transpose(1, 2).contiguous());
  if (const auto prompt = inputs.find("prompt_embeds"); prompt != inputs.end())
    x = x + text_(prompt->second.mean(1)).unsqueeze(1);
  const at::Tensor guidance = sizes_.guidance ? inputs.find("guidance")->second : time * 0 + 1;
  return {{x}, {time_(at::stack({time, guidance}, 1))}, {latents.size(3), latents.size(4)}};
}

at::Tensor ToyModel::epilogue(const Flow& flow) {
  const at::Tensor tokens = head_(flow.carried[0] * norm_->get());
  return tokens.transpose(1, 2).reshape({tokens.size(0), tokens.size(2), 1, flow.sizes[0], flow.sizes[1]});
}

}  // namespace trainer::testing
