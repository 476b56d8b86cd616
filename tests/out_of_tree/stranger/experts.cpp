/// @file A family of two experts, as Wan 2.2 has them: one model for the noisy part of the way, one for the rest, each
/// with weights and blocks of its own ("high.*", "low.*"). The timestep chooses; one chain runs per step. A run trains
/// one of them, at the noise levels that are its own; samples go through both.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <trainer/sdk/plugin.hpp>

#include <array>

namespace {

using namespace trainer;

enum Which : int64_t { kHigh = 0, kLow = 1 };
constexpr std::array<const char*, 2> kNames{"high", "low"};

/// Takes part when Flow::sizes[2] names its expert.
class ExpertBlock final : public Block {
 public:
  ExpertBlock(ModelBuilder& build, const std::string& name, int64_t width, Which expert)
      : Block(name, "expert"),
        expert_(expert),
        up_(own(build.linear(name + ".up", width, 2 * width))),
        down_(own(build.linear(name + ".down", 2 * width, width))) {}
  [[nodiscard]] bool takes_part(const Flow& flow) const override { return flow.sizes.at(2) == expert_; }
  std::vector<at::Tensor> forward(const Flow& flow) override {
    const at::Tensor& x = flow.carried[0];
    const std::vector<at::Tensor> mod = flow.shared[0].unsqueeze(1).chunk(2, -1);
    const at::Tensor h = (at::layer_norm(x, {x.size(-1)}) * (1 + mod[0])).unsqueeze(1);
    return {x + mod[1] * down_(at::silu(up_(at::scaled_dot_product_attention(h, h, h).squeeze(1))))};
  }

 private:
  Which expert_;
  Linear up_, down_;
};

struct Expert {
  Linear embed, time_embed, modulation, out;
  std::vector<std::unique_ptr<ExpertBlock>> blocks;
};

class Experts final : public Model {
 public:
  explicit Experts(const ModelContext& context)
      : dtype_(context.build.dtype()),
        boundary_(context.options.get<double>("boundary")),
        trained_(context.options.get<std::string>("train") == "high" ? kHigh : kLow) {
    for (const Which expert : {kHigh, kLow}) build(context, expert);
    // The boundary itself, to which fp32 may round a level, is the first expert's.
    const auto [from, to] = trained_ == kHigh ? std::pair(boundary_, 1.0) : std::pair(0.0, boundary_ - 1e-6);
    traits_.noise_from = from, traits_.noise_to = to;
    traits_.training_mu = [](int64_t) { return 0.0; };
    traits_.tokens = [](int64_t frames, int64_t height, int64_t width) { return frames * height * width; };
    traits_.sigmas = [](int64_t, int64_t steps) {
      std::vector<double> sigmas;
      for (int64_t i = steps; i >= 0; --i) sigmas.push_back(static_cast<double>(i) / static_cast<double>(steps));
      return sigmas;
    };
  }
  [[nodiscard]] std::vector<InputSpec> inputs() const override {
    return {{"latents", "noisy"}, {"timestep", "in [0, 1], 1 is noise"}};
  }

  Flow prologue(const NamedTensors& inputs) override {
    const at::Tensor &latents = inputs.at("latents"), &time = inputs.at("timestep");
    const bool high = time.min().item<double>() >= boundary_;
    if (!high && time.max().item<double>() >= boundary_)
      throw Error(ExitCode::bad_recipe, "timesteps of both experts in one micro-batch; set train.micro_batch_size = 1");
    const Which chosen = high ? kHigh : kLow;
    Expert& expert = experts_[chosen];
    const at::Tensor angles = time.unsqueeze(1) * at::arange(1, expert.time_embed.state().in / 2 + 1, time.options());
    const at::Tensor embedded = expert.time_embed(at::cat({angles.cos(), angles.sin()}, 1).to(dtype_));
    return {{expert.embed(latents.flatten(2).transpose(1, 2).to(dtype_))},
            {expert.modulation(at::silu(embedded))},
            {latents.size(3), latents.size(4), chosen}};
  }
  std::span<Block* const> blocks() override { return borrowed_; }
  at::Tensor epilogue(const Flow& flow) override {
    const at::Tensor tokens = experts_.at(static_cast<std::size_t>(flow.sizes.at(2))).out(flow.carried[0]);
    return tokens.transpose(1, 2).unflatten(2, {1, flow.sizes[0], flow.sizes[1]});
  }
  [[nodiscard]] const DiffusionTraits* diffusion() const override { return &traits_; }
  [[nodiscard]] std::vector<std::string> default_targets() const override {
    return {std::string(kNames.at(trained_)) + ".blocks.*"};
  }
  [[nodiscard]] std::string describe() const override {
    return "two experts of " + std::to_string(borrowed_.size() / 2) + " blocks, trained is the one for " +
           kNames.at(trained_) + " noise";
  }

 private:
  void build(const ModelContext& context, Which which) {
    const std::string prefix = std::string(kNames.at(which)) + ".";
    const TensorInfo* info = context.weights.find(prefix + "embed.weight");
    if (info == nullptr || info->shape.size() != 2)
      throw Error(ExitCode::bad_input, context.weights.describe() + ": no \"" + prefix + "embed.weight\"",
                  "MODEL_KEYS");
    const int64_t width = info->shape[0], channels = info->shape[1];
    ModelBuilder& make = context.build;
    make.spare(which != trained_);
    Expert& expert = experts_.at(which);
    expert.embed = make.linear(prefix + "embed", channels, width);
    expert.time_embed = make.linear(prefix + "time_embed", width, width);
    expert.modulation = make.linear(prefix + "modulation", width, 2 * width);
    for (int i = 0;; ++i) {
      const std::string name = prefix + "blocks." + std::to_string(i);
      if (context.weights.find(name + ".up.weight") == nullptr) break;
      expert.blocks.push_back(std::make_unique<ExpertBlock>(make, name, width, which));
      borrowed_.push_back(expert.blocks.back().get());
    }
    expert.out = make.linear(prefix + "out", width, channels);
    make.spare(false);
    traits_.latent_channels = channels;
  }

  at::ScalarType dtype_;
  double boundary_;  ///< noise levels from here on are the first expert's
  Which trained_;
  std::array<Expert, 2> experts_;
  std::vector<Block*> borrowed_;
  DiffusionTraits traits_;
};

std::unique_ptr<Model> create(const ModelContext& context) { return std::make_unique<Experts>(context); }

/// What `trainer plugins check` proves the plugin on.
Miniature miniature() {
  Miniature made;
  for (const std::string expert : {"high.", "low."}) {
    made.tensors.push_back({expert + "embed.weight", {12, 4}});
    made.tensors.push_back({expert + "time_embed.weight", {12, 12}});
    made.tensors.push_back({expert + "modulation.weight", {24, 12}});
    for (const char* block : {"blocks.0", "blocks.1"}) {
      made.tensors.push_back({expert + block + ".up.weight", {24, 12}});
      made.tensors.push_back({expert + block + ".down.weight", {12, 24}});
    }
    made.tensors.push_back({expert + "out.weight", {4, 12}});
  }
  return made;
}

void init(Registrar& registrar) { registrar.add({"experts", create, nullptr, miniature}); }

}  // namespace

TRAINER_PLUGIN("experts", "0.1.0", init)
