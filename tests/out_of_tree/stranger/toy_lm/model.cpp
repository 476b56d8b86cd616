/// @file A causal language model: embedded tokens and positions, blocks of attention and MLP, logits over the
/// vocabulary. Sizes are read from the shapes of the weights.
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <trainer/sdk/model.hpp>

#include "parts.hpp"

namespace toy_lm {
namespace {

using namespace trainer;

class Layer final : public Block {
 public:
  Layer(ModelBuilder& build, const std::string& name, int64_t width)
      : Block(name, "layer"),
        norm_(own(build.parameter(name + ".norm.weight", {width}))),
        qkv_(own(build.linear(name + ".attn.qkv", width, 3 * width))),
        out_(own(build.linear(name + ".attn.out", width, width))),
        up_(own(build.linear(name + ".mlp.up", width, 2 * width))),
        down_(own(build.linear(name + ".mlp.down", 2 * width, width))) {}

  std::vector<at::Tensor> forward(const Flow& flow) override {
    const at::Tensor& x = flow.carried[0];  // [B, L, W]
    const at::Tensor h = at::layer_norm(x, {x.size(-1)}) * norm_->get(x.scalar_type());
    const std::vector<at::Tensor> qkv = qkv_(h).unflatten(2, {3, kHeads, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, /*dropout_p=*/0.0, /*is_causal=*/true);
    const at::Tensor y = x + out_(mixed.transpose(1, 2).flatten(2));
    return {y + down_(at::silu(up_(at::layer_norm(y, {y.size(-1)}))))};
  }

 private:
  static constexpr int64_t kHeads = 2;
  ParameterPtr norm_;
  Linear qkv_, out_, up_, down_;
};

class ToyLm final : public Model {
 public:
  explicit ToyLm(const ModelContext& context) : dtype_(context.build.dtype()) {
    const std::vector<int64_t> table = shape_of(context, "embed.weight");          // [vocabulary, narrow]
    const std::vector<int64_t> positions = shape_of(context, "positions.weight");  // [length, width]
    length_ = positions[0];
    embed_ = context.build.parameter("embed.weight", table);
    positions_ = context.build.parameter("positions.weight", positions);
    project_ = context.build.linear("project", table[1], positions[1]);
    for (int i = 0; context.weights.find(name_of(i) + ".norm.weight") != nullptr; ++i) {
      layers_.push_back(std::make_unique<Layer>(context.build, name_of(i), positions[1]));
      borrowed_.push_back(layers_.back().get());
    }
    head_ = context.build.parameter("head.weight", {table[0], positions[1]});
  }

  [[nodiscard]] std::vector<InputSpec> inputs() const override {
    return {{"tokens", "ids [B, L]", true, std::vector<int64_t>{-1}, kEnd + 1}};
  }

  Flow prologue(const NamedTensors& inputs) override {
    const at::Tensor& tokens = inputs.at("tokens");
    const int64_t length = tokens.size(1);
    if (length > length_)
      throw Error(ExitCode::bad_recipe, "texts of " + std::to_string(length) + " tokens; the model has positions for " +
                                            std::to_string(length_) + ": lower text_encoder.length");
    const at::Tensor embedded = project_(at::embedding(embed_->get(), tokens).to(dtype_));
    return {{embedded + positions_->get(dtype_).narrow(0, 0, length)}, {}, {}};
  }
  std::span<Block* const> blocks() override { return borrowed_; }

  /// Logits [B, L, vocabulary].
  at::Tensor epilogue(const Flow& flow) override { return epilogue_slice(flow, 0, head_->value().size(0)); }
  at::Tensor epilogue_slice(const Flow& flow, int64_t begin, int64_t end) override {
    const at::Tensor x = at::layer_norm(flow.carried[0], {flow.carried[0].size(-1)});
    const at::Tensor rows = head_->get(dtype_).narrow(0, begin, end - begin);
    return at::mm(x.flatten(0, 1), rows.t()).unflatten(0, {x.size(0), x.size(1)});
  }

  [[nodiscard]] std::vector<std::string> default_targets() const override { return {"layers.*"}; }
  [[nodiscard]] std::string describe() const override {
    return "a toy language model of " + std::to_string(layers_.size()) + " layers";
  }

 private:
  static std::string name_of(int layer) { return "layers." + std::to_string(layer); }
  static std::vector<int64_t> shape_of(const ModelContext& context, const std::string& name) {
    const TensorInfo* info = context.weights.find(name);
    if (info == nullptr || info->shape.size() != 2)
      throw Error(ExitCode::bad_input, context.weights.describe() + ": no matrix \"" + name + "\": not a toy_lm",
                  "MODEL_KEYS");
    return info->shape;
  }

  at::ScalarType dtype_;
  int64_t length_ = 0;
  ParameterPtr embed_, positions_, head_;
  Linear project_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<Block*> borrowed_;
};

}  // namespace

Miniature miniature() {
  Miniature made;
  made.tensors = {{"embed.weight", {kEnd + 1, 6}}, {"positions.weight", {8, 12}}, {"project.weight", {12, 6}}};
  for (const std::string layer : {"layers.0", "layers.1", "layers.2"}) {
    made.tensors.push_back({layer + ".norm.weight", {12}});
    made.tensors.push_back({layer + ".attn.qkv.weight", {36, 12}});
    made.tensors.push_back({layer + ".attn.out.weight", {12, 12}});
    made.tensors.push_back({layer + ".mlp.up.weight", {24, 12}});
    made.tensors.push_back({layer + ".mlp.down.weight", {12, 24}});
  }
  made.tensors.push_back({"head.weight", {kEnd + 1, 12}});
  return made;
}

std::unique_ptr<Model> make_model(const ModelContext& context) { return std::make_unique<ToyLm>(context); }

}  // namespace toy_lm
