#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <prove/conformance_model.hpp>

#include <string>

namespace trainer::prove {
namespace {

constexpr int64_t kWidth = 16, kChannels = 4, kText = 12, kHeads = 2;

at::Tensor modulated(const at::Tensor& x, const std::vector<at::Tensor>& mod) {
  return at::layer_norm(x, {x.size(-1)}) * (1 + mod[0]) + mod[1];
}

at::Tensor attention(const at::Tensor& qkv) {
  const at::Tensor heads = qkv.unflatten(-1, {3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
  return at::scaled_dot_product_attention(heads[0], heads[1], heads[2]).transpose(1, 2).flatten(2);
}

/// Carried {picture, text} -> the same; shared {modulation [B, 6D]}.
class TwoStreams final : public Block {
 public:
  TwoStreams(ModelBuilder& build, const std::string& name)
      : Block(name, "two_streams"),
        picture_(own(build.linear(name + ".picture_qkv", kWidth, 3 * kWidth, true))),
        text_(own(build.linear(name + ".text_qkv", kWidth, 3 * kWidth))),
        picture_out_(own(build.linear(name + ".picture_out", kWidth, kWidth))),
        text_out_(own(build.linear(name + ".text_out", kWidth, kWidth))),
        scale_(own(build.parameter(name + ".scale", {3 * kWidth}))) {}
  std::vector<at::Tensor> forward(const Flow& flow) override {
    const std::vector<at::Tensor> mod = flow.shared[0].unsqueeze(1).chunk(6, -1);
    const at::Tensor &picture = flow.carried[0], &text = flow.carried[1];
    const at::Tensor qkv = at::cat({text_(modulated(text, mod)), picture_(modulated(picture, mod))}, 1);
    const at::Tensor mixed = attention(qkv * scale_->get(qkv.scalar_type()));
    return {picture + mod[2] * picture_out_(mixed.narrow(1, text.size(1), picture.size(1))),
            text + mod[5] * text_out_(mixed.narrow(1, 0, text.size(1)))};
  }

 private:
  Linear picture_, text_, picture_out_, text_out_;
  ParameterPtr scale_;
};

/// Carried {picture, text} or, after the first, {both} -> {both}.
class OneStream final : public Block {
 public:
  OneStream(ModelBuilder& build, const std::string& name)
      : Block(name, "one_stream"),
        in_(own(build.linear(name + ".in", kWidth, 5 * kWidth))),
        out_(own(build.linear(name + ".out", 3 * kWidth, kWidth))) {}
  std::vector<at::Tensor> forward(const Flow& flow) override {
    const at::Tensor x = flow.carried.size() == 2 ? at::cat({flow.carried[1], flow.carried[0]}, 1) : flow.carried[0];
    const std::vector<at::Tensor> mod = flow.shared[0].unsqueeze(1).chunk(6, -1);
    const at::Tensor all = in_(modulated(x, {mod[3], mod[4]}));
    const at::Tensor mixed = attention(all.narrow(-1, 0, 3 * kWidth));
    return {x + mod[5] * out_(at::cat({mixed, at::silu(all.narrow(-1, 3 * kWidth, 2 * kWidth))}, -1))};
  }

 private:
  Linear in_, out_;
};

class ConformanceModel final : public Model {
 public:
  explicit ConformanceModel(ModelBuilder& build)
      : dtype_(build.dtype()),
        device_(build.device()),
        embed_(build.linear("embed", kChannels, kWidth, true)),
        text_(build.linear("text_embed", kText, kWidth)),
        time_(build.linear("time_embed", kWidth, kWidth)),
        modulation_(build.linear("modulation", kWidth, 6 * kWidth)) {
    for (int i = 0; i < 2; ++i) blocks_.push_back(std::make_unique<TwoStreams>(build, "two." + std::to_string(i)));
    for (int i = 0; i < 2; ++i) blocks_.push_back(std::make_unique<OneStream>(build, "one." + std::to_string(i)));
    for (const auto& block : blocks_) borrowed_.push_back(block.get());
    out_ = build.linear("out", kWidth, kChannels);
    traits_.latent_channels = kChannels;
    traits_.training_mu = [](int64_t) { return 0.5; };
    traits_.tokens = [](int64_t frames, int64_t height, int64_t width) { return frames * height * width; };
  }
  std::vector<InputSpec> inputs() const override {
    return {{"latents", "noisy"}, {"timestep", "in [0, 1]"}, {"prompt_embeds", "text", true, {{-1, kText}}}};
  }
  Flow prologue(const NamedTensors& inputs) override {
    const at::Tensor& latents = inputs.at("latents");  // [B, C, 1, h, w]
    const at::Tensor& times = inputs.at("timestep");
    const at::Tensor angles = times.unsqueeze(1) * at::arange(1, kWidth / 2 + 1, times.options());
    const at::Tensor time = time_(at::cat({angles.cos(), angles.sin()}, 1).to(device_, dtype_));
    return {{embed_(latents.to(device_, dtype_).flatten(2).transpose(1, 2)),
             text_(inputs.at("prompt_embeds").to(device_, dtype_))},
            {modulation_(at::silu(time))},
            {latents.size(3), latents.size(4)}};
  }
  std::span<Block* const> blocks() override { return borrowed_; }
  at::Tensor epilogue(const Flow& flow) override {
    const int64_t tokens = flow.sizes[0] * flow.sizes[1];
    const at::Tensor& x = flow.carried[0];
    return out_(x.narrow(1, x.size(1) - tokens, tokens))
        .transpose(1, 2)
        .unflatten(2, {1, flow.sizes[0], flow.sizes[1]});
  }
  const DiffusionTraits* diffusion() const override { return &traits_; }
  std::vector<std::string> default_targets() const override { return {"two.*", "one.*"}; }
  std::string describe() const override { return "the conformance model, 2 + 2 blocks"; }

 private:
  at::ScalarType dtype_;
  at::Device device_;
  Linear embed_, text_, time_, modulation_, out_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Block*> borrowed_;
  DiffusionTraits traits_;
};

Miniature miniature() {
  Miniature made;
  made.tensors = {{"embed.weight", {kWidth, kChannels}},       {"embed.bias", {kWidth}},
                  {"text_embed.weight", {kWidth, kText}},      {"time_embed.weight", {kWidth, kWidth}},
                  {"modulation.weight", {6 * kWidth, kWidth}}, {"out.weight", {kChannels, kWidth}}};
  for (const char* i : {"0", "1"}) {
    const std::string two = std::string("two.") + i, one = std::string("one.") + i;
    made.tensors.push_back({two + ".picture_qkv.weight", {3 * kWidth, kWidth}});
    made.tensors.push_back({two + ".picture_qkv.bias", {3 * kWidth}});
    made.tensors.push_back({two + ".text_qkv.weight", {3 * kWidth, kWidth}});
    made.tensors.push_back({two + ".picture_out.weight", {kWidth, kWidth}});
    made.tensors.push_back({two + ".text_out.weight", {kWidth, kWidth}});
    made.tensors.push_back({two + ".scale", {3 * kWidth}});
    made.tensors.push_back({one + ".in.weight", {5 * kWidth, kWidth}});
    made.tensors.push_back({one + ".out.weight", {kWidth, 3 * kWidth}});
  }
  return made;
}

}  // namespace

void add_conformance_model(plugin::Registry& registry) {
  registry.models.emplace("conformance", ModelComponent{"conformance",
                                                        [](const ModelContext& context) -> std::unique_ptr<Model> {
                                                          return std::make_unique<ConformanceModel>(context.build);
                                                        },
                                                        nullptr, miniature});
}

}  // namespace trainer::prove
