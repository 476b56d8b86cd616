/// @file A whole model plugin by a stranger: tokens of the latents through modulated blocks (attention among
/// the tokens, MLP). It knows the SDK only.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <trainer/sdk/plugin.hpp>

namespace {

class Mixer final : public trainer::Block {
 public:
  Mixer(trainer::ModelBuilder& build, const std::string& name, int64_t width)
      : Block(name, "mixer"),
        up_(own(build.linear(name + ".up", width, 2 * width))),
        down_(own(build.linear(name + ".down", 2 * width, width))),
        scale_(own(build.parameter(name + ".scale", {width}))) {}
  std::vector<at::Tensor> forward(const trainer::Flow& flow) override {
    const std::vector<at::Tensor> mod = flow.shared[0].unsqueeze(1).chunk(3, -1);
    const at::Tensor& x = flow.carried[0];
    const at::Tensor h = (at::layer_norm(x, {x.size(-1)}) * (1 + mod[0]) + mod[1]).unsqueeze(1);
    const at::Tensor mixed = at::scaled_dot_product_attention(h, h, h).squeeze(1);
    return {x + mod[2] * down_(at::silu(up_(mixed))) * scale_->get(x.scalar_type())};
  }

 private:
  trainer::Linear up_, down_;
  trainer::ParameterPtr scale_;
};

class Toy final : public trainer::Model {
 public:
  explicit Toy(const trainer::ModelContext& context) : dtype_(context.build.dtype()) {
    const std::vector<int64_t> shape = context.weights.find("embed.weight")->shape;  // [width, channels]
    embed_ = context.build.linear("embed", shape[1], shape[0], true);
    time_ = context.build.linear("time_embed", shape[0], shape[0]);
    modulation_ = context.build.linear("modulation", shape[0], 3 * shape[0]);
    for (int i = 0; context.weights.find("blocks." + std::to_string(i) + ".up.weight") != nullptr; ++i) {
      blocks_.push_back(std::make_unique<Mixer>(context.build, "blocks." + std::to_string(i), shape[0]));
      borrowed_.push_back(blocks_.back().get());
    }
    out_ = context.build.linear("out", shape[0], shape[1]);
    traits_.latent_channels = shape[1];
    traits_.training_mu = [](int64_t) { return 0.5; };
    traits_.tokens = [](int64_t frames, int64_t height, int64_t width) { return frames * height * width; };
  }
  std::vector<trainer::InputSpec> inputs() const override { return {{"latents", "noisy"}, {"timestep", "in [0, 1]"}}; }
  trainer::Flow prologue(const trainer::NamedTensors& inputs) override {
    const at::Tensor& latents = inputs.at("latents");  // [B, C, 1, h, w]
    const at::Tensor angles =
        inputs.at("timestep").unsqueeze(1) * at::arange(1, embed_.state().out / 2 + 1, inputs.at("timestep").options());
    const at::Tensor time = time_(at::cat({angles.cos(), angles.sin()}, 1).to(dtype_));
    return {{embed_(latents.flatten(2).transpose(1, 2).to(dtype_))},
            {modulation_(at::silu(time))},
            {latents.size(3), latents.size(4)}};
  }
  std::span<trainer::Block* const> blocks() override { return borrowed_; }
  at::Tensor epilogue(const trainer::Flow& flow) override {
    return out_(flow.carried[0]).transpose(1, 2).unflatten(2, {1, flow.sizes[0], flow.sizes[1]});
  }
  const trainer::DiffusionTraits* diffusion() const override { return &traits_; }
  std::vector<std::string> default_targets() const override { return {"blocks.*"}; }
  std::string describe() const override { return "a toy of " + std::to_string(blocks_.size()) + " blocks"; }

 private:
  at::ScalarType dtype_;
  trainer::Linear embed_, time_, modulation_, out_;
  std::vector<std::unique_ptr<Mixer>> blocks_;
  std::vector<trainer::Block*> borrowed_;
  trainer::DiffusionTraits traits_;
};

std::unique_ptr<trainer::Model> create(const trainer::ModelContext& context) { return std::make_unique<Toy>(context); }

/// What `trainer plugins check` proves the plugin on.
trainer::Miniature miniature() {
  trainer::Miniature made;
  made.tensors = {{"embed.weight", {16, 4}},
                  {"embed.bias", {16}},
                  {"time_embed.weight", {16, 16}},
                  {"modulation.weight", {48, 16}},
                  {"out.weight", {4, 16}}};
  for (const char* block : {"blocks.0", "blocks.1"}) {
    made.tensors.push_back({std::string(block) + ".up.weight", {32, 16}});
    made.tensors.push_back({std::string(block) + ".down.weight", {16, 32}});
    made.tensors.push_back({std::string(block) + ".scale", {16}});
  }
  return made;
}

void init(trainer::Registrar& registrar) { registrar.add({"toy", create, nullptr, miniature}); }

}  // namespace

TRAINER_PLUGIN("toy", "0.1.0", init)
