/// @file LoRA on layers that all blocks share (modulation, time and guidance MLPs), plain and with every block
/// recomputed. Each block then hands a gradient to the same tensors: lost or doubled ones show here.
#include <ATen/TensorOperators.h>

#include <support/components.hpp>
#include <train/forward.hpp>
#include <trainer/sdk/recompute.hpp>

#include "fixture.hpp"

namespace trainer::parity {
namespace {

class DoubleBackward : public ::testing::TestWithParam<std::filesystem::path> {
 protected:
  struct Result {
    at::Tensor out;
    NamedTensors grads;
  };

  /// Forward and backward of sum(out * cotangent) through the engine that the loop uses.
  Result gradients(bool recompute) const {
    train::LoadedModel loaded = load_transformer(GetParam());
    attach_lora(loaded, spec_["rank"], spec_["alpha"], spec_["target_modules"], tensors_, "init.");
    std::vector<train::MemoryStack::Named> strategies;
    if (recompute) strategies.push_back({"full_checkpointing", std::make_unique<testing::RecomputeAll>()});
    const train::MemoryStack memory(std::move(strategies));
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

INSTANTIATE_TEST_SUITE_P(Parity, DoubleBackward, ::testing::ValuesIn(test::parity_dirs()), test::DirName{});

}  // namespace
}  // namespace trainer::parity
