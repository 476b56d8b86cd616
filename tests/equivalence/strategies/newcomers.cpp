/// @file A plugin of a test with a model, an adapter and a placement in one library: each is in the matrix as soon as
/// it is found. With NEWCOMERS_BARE the model offers no miniature of itself, so nothing can train it.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <trainer/sdk/plugin.hpp>

namespace {

using namespace trainer;

constexpr int64_t kWidth = 8, kChannels = 4, kBlocks = 3;

class Layer final : public Block {
 public:
  Layer(ModelBuilder& build, const std::string& name)
      : Block(name, "layer"), linear_(own(build.linear(name + ".linear", kWidth, kWidth))) {}
  std::vector<at::Tensor> forward(const Flow& flow) override {
    return {flow.carried[0] + linear_(flow.carried[0]) * flow.shared[0].unsqueeze(1)};
  }

 private:
  Linear linear_;
};

class Newcomer final : public Model {
 public:
  explicit Newcomer(ModelBuilder& build)
      : dtype_(build.dtype()),
        embed_(build.linear("embed", kChannels, kWidth)),
        time_(build.linear("time_embed", 1, kWidth)) {
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks_.push_back(std::make_unique<Layer>(build, "blocks." + std::to_string(i)));
      borrowed_.push_back(blocks_.back().get());
    }
    out_ = build.linear("out", kWidth, kChannels);
    traits_.latent_channels = kChannels;
    traits_.training_mu = [](int64_t) { return 0.5; };
    traits_.tokens = [](int64_t frames, int64_t height, int64_t width) { return frames * height * width; };
  }
  std::vector<InputSpec> inputs() const override { return {{"latents", "noisy"}, {"timestep", "in [0, 1]"}}; }
  Flow prologue(const NamedTensors& inputs) override {
    const at::Tensor& latents = inputs.at("latents");  // [B, C, 1, h, w]
    return {{embed_(latents.flatten(2).transpose(1, 2).to(dtype_))},
            {time_(inputs.at("timestep").unsqueeze(1).to(dtype_))},
            {latents.size(3), latents.size(4)}};
  }
  std::span<Block* const> blocks() override { return borrowed_; }
  at::Tensor epilogue(const Flow& flow) override {
    return out_(flow.carried[0]).transpose(1, 2).unflatten(2, {1, flow.sizes[0], flow.sizes[1]});
  }
  const DiffusionTraits* diffusion() const override { return &traits_; }
  std::vector<std::string> default_targets() const override { return {"blocks.*"}; }
  std::string describe() const override { return "a newcomer"; }

 private:
  at::ScalarType dtype_;
  Linear embed_, time_, out_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Block*> borrowed_;
  DiffusionTraits traits_;
};

#if !defined(NEWCOMERS_BARE)
Miniature miniature() {
  Miniature made;
  made.tensors = {
      {"embed.weight", {kWidth, kChannels}}, {"time_embed.weight", {kWidth, 1}}, {"out.weight", {kChannels, kWidth}}};
  for (int64_t i = 0; i < kBlocks; ++i)
    made.tensors.push_back({"blocks." + std::to_string(i) + ".linear.weight", {kWidth, kWidth}});
  return made;
}

/// y + b, b trained.
class Shifted final : public LinearAdapter {
 public:
  explicit Shifted(std::shared_ptr<Parameter> shift) : shift_(std::move(shift)) {}
  at::Tensor apply(const at::Tensor&, const at::Tensor& y) const override { return y + shift_->get(y.scalar_type()); }
  std::vector<Parameter*> parameters() override { return {shift_.get()}; }

 private:
  std::shared_ptr<Parameter> shift_;
};
class Shift final : public Adapter {
 public:
  std::unique_ptr<LinearAdapter> attach(const LinearState& state, const AttachContext& context) const override {
    const at::TensorOptions where = at::TensorOptions(context.device).dtype(at::kFloat);
    return std::make_unique<Shifted>(
        std::make_shared<Parameter>(state.name + ".shift", at::zeros({state.out}, where).requires_grad_(true)));
  }
  [[nodiscard]] std::vector<std::string> targets() const override { return {"default"}; }
  [[nodiscard]] NamedTensors export_layer(const LinearState& state) const override {
    NamedTensors tensors;
    for (Parameter* parameter : state.adapter->parameters())
      tensors[parameter->name()] = parameter->value().detach().cpu();
    return tensors;
  }
  [[nodiscard]] std::string describe() const override { return "shift"; }
};

/// The first block on the first device, all others on the second; the third is left alone.
class Lopsided final : public Placement {
 public:
  [[nodiscard]] PlacementPlan plan(const PlacementRequest& request) const override {
    if (request.devices.size() < 2) throw Error(ExitCode::bad_recipe, "placement.devices: two are needed");
    PlacementPlan plan;
    plan.prologue = plan.epilogue = request.devices[0];
    plan.blocks.assign(request.blocks.size(), request.devices[1]);
    plan.blocks[0] = request.devices[0];
    for (int64_t micro = 0; micro < request.micro_batches; ++micro) {
      for (const int64_t stage : {0, 1, 2}) plan.schedule.push_back({Pass::forward, stage, micro});
      for (const int64_t stage : {2, 1, 0}) plan.schedule.push_back({Pass::backward, stage, micro});
    }
    return plan;
  }
};
#endif

void init(Registrar& registrar) {
  ModelComponent model;
  model.name = TOY_NAME;
  model.create = [](const ModelContext& context) -> std::unique_ptr<Model> {
    return std::make_unique<Newcomer>(context.build);
  };
#if !defined(NEWCOMERS_BARE)
  model.miniature = miniature;
  registrar.add(
      AdapterComponent{"shift", [](const Options&) -> std::unique_ptr<Adapter> { return std::make_unique<Shift>(); }});
  registrar.add(PlacementComponent{
      "lopsided", [](const Options&) -> std::unique_ptr<Placement> { return std::make_unique<Lopsided>(); }});
#endif
  registrar.add(std::move(model));
}

}  // namespace

TRAINER_PLUGIN(TOY_NAME, "0.1.0", init)
