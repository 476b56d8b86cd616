/// @file LoRA on layers that all blocks share (modulation, time and guidance MLPs), plain and with every block
/// recomputed. Each block then hands a gradient to the same tensors: lost or doubled ones show here.
#include <ATen/TensorOperators.h>

#include <execution/forward.hpp>
#include <parity/train/fixture.hpp>
#include <support/components.hpp>
#include <trainer/sdk/recompute.hpp>

namespace trainer::parity {
namespace {

/// Hides from the layer that its adapter is of low rank: the adapter is a node of its own then.
class AfterTheLayer final : public LinearAdapter {
 public:
  explicit AfterTheLayer(std::unique_ptr<LinearAdapter> adapter) : adapter_(std::move(adapter)) {}
  [[nodiscard]] at::Tensor apply(const at::Tensor& x, const at::Tensor& y) const override {
    return adapter_->apply(x, y);
  }
  [[nodiscard]] std::vector<Parameter*> parameters() override { return adapter_->parameters(); }

 private:
  std::unique_ptr<LinearAdapter> adapter_;
};

class DoubleBackward : public ::testing::TestWithParam<std::filesystem::path> {
 protected:
  struct Result {
    at::Tensor out;
    NamedTensors grads;
  };

  /// Forward and backward of sum(out * cotangent) through the engine that the loop uses.
  Result gradients(bool recompute, at::ScalarType dtype = at::kFloat, bool two_nodes = false) const {
    assembly::LoadedModel loaded = load_transformer(GetParam(), dtype);
    attach_lora(loaded, spec_["rank"], spec_["alpha"], spec_["target_modules"], tensors_, "init.");
    for (const Linear& linear : loaded.adapted)
      if (two_nodes) linear.state().adapter = std::make_unique<AfterTheLayer>(std::move(linear.state().adapter));
    std::vector<execution::MemoryStack::Named> strategies;
    if (recompute) strategies.push_back({"full_checkpointing", std::make_unique<testing::RecomputeAll>()});
    const execution::MemoryStack memory(std::move(strategies));
    NamedTensors inputs{{"latents", latents_of(dit_.at("in.hidden_states"), grid_)},
                        {"prompt_embeds", dit_.at("in.encoder_hidden_states")},
                        {"timestep", dit_.at("in.timestep")}};
    if (dit_.contains("in.guidance")) inputs["guidance"] = dit_.at("in.guidance");
    Model& model = *loaded.model;
    Flow flow = model.prologue(inputs);
    RecomputeState verified;
    for (std::size_t i = 0; i < model.blocks().size(); ++i) {
      const Site site{model.blocks()[i], static_cast<int64_t>(i), static_cast<int64_t>(model.blocks().size()), 0};
      flow.carried = run_block(*model.blocks()[i], flow, memory.run_at(site, &site, &verified));
    }
    Result result{tokens_of(model.epilogue(flow)), {}};
    (result.out * dit_.at("cotangent")).sum().backward();
    for (Parameter* parameter : loaded.trained) result.grads[parameter->name()] = parameter->value().grad();
    EXPECT_EQ(recompute ? model.blocks().size() : 0, verified.signatures.size());
    return result;
  }

  const NamedTensors tensors_ = test::load_tensors(GetParam() / "double_backward.safetensors");
  const NamedTensors dit_ = test::load_tensors(GetParam() / "dit.safetensors");
  const nlohmann::json spec_ = test::file_json(GetParam() / "double_backward.json");
  const nlohmann::json grid_ = test::file_json(GetParam() / "parity.json").at("sizes").at("dit_grid");
};

TEST_P(DoubleBackward, GradientsAsDiffusersAndTheSameRecomputed) {
  const Result plain = gradients(false), recomputed = gradients(true);
  EXPECT_LE(measured("out", test::max_error(plain.out, tensors_.at("out"))), 1e-5);
  EXPECT_TRUE(test::same_bits(plain.out.detach(), recomputed.out.detach()));
  std::size_t references = 0;
  double worst = 0;
  for (const auto& [name, reference] : tensors_) {
    if (!name.starts_with("grad.")) continue;
    ++references;
    const std::string layer = name.substr(5);
    ASSERT_TRUE(plain.grads.contains(layer) && plain.grads.at(layer).defined()) << layer;
    const double error = test::max_error(plain.grads.at(layer), reference);
    EXPECT_LE(error, 3e-5) << layer;
    worst = std::max(worst, error);
    EXPECT_TRUE(test::same_bits(plain.grads.at(layer), recomputed.grads.at(layer))) << layer;
  }
  measured("gradients", worst);
  EXPECT_EQ(references, plain.grads.size());
}

/// A layer and its adapter in one node are the two nodes to rounding, in every gradient of the model.
TEST_P(DoubleBackward, OneNodeALayerIsTwoToRounding) {
  for (const auto& [dtype, limit] : {std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 5e-2}}) {
    const Result one = gradients(false, dtype), two = gradients(false, dtype, /*two_nodes=*/true);
    EXPECT_LE(measured("out", test::max_error(one.out.detach(), two.out.detach())), limit);
    double worst = 0;
    bool differs = false;
    for (const auto& [name, gradient] : two.grads) {
      worst = std::max(worst, test::max_error(one.grads.at(name), gradient));
      differs = differs || !test::same_bits(one.grads.at(name), gradient);
    }
    EXPECT_LE(measured("gradients", worst), limit);
    EXPECT_TRUE(differs) << "both were computed in one way";
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, DoubleBackward, ::testing::ValuesIn(test::parity_dirs()), test::DirName{});

}  // namespace
}  // namespace trainer::parity
