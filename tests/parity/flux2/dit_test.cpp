/// @file Forward and backward of the transformer against diffusers, tensor by tensor. Limits: README of the parity
/// data.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <cmath>

#include "fixture.hpp"

namespace trainer::flux2 {
namespace {

constexpr double kForward = 1e-5, kGradient = 3e-5, kBf16 = 0.04, kBf16Gradient = 0.12;

class Dit : public ::testing::TestWithParam<std::filesystem::path> {
 protected:
  Parity parity_{GetParam()};
  Built built(const BuildAs& as = {}) const { return build(GetParam() / "model" / "transformer", as); }
  void expect_near(const at::Tensor& value, const std::string& name, double limit = kForward) const {
    ASSERT_TRUE(parity_.has(name)) << name;
    EXPECT_LE(error_max(value, parity_[name]), limit) << name;
  }
};

at::Tensor repeated(const at::Tensor& table, int64_t part) {
  return table.select(-1, part)[0].repeat_interleave(2, -1);
}

/// Our sinusoids against the reference's, element by element: a frequency may differ by one unit in the last place (exp
/// of fp32 is rounded differently by CPUs), which moves the angle by 1.2e-7 of itself.
TEST_P(Dit, Sinusoids) {
  const Built dit = built();
  const Sinusoids ours = dit.model->sinusoids(parity_.inputs()), reference = parity_.sinusoids();
  const auto expect_waves = [](const at::Tensor& value, const at::Tensor& expected, const at::Tensor& times) {
    const int64_t half = value.size(1) / 2;
    const at::Tensor index = at::cat({at::arange(half), at::arange(half)}).to(at::kDouble);
    const at::Tensor angles = (times * 1000).unsqueeze(1) * (index * (-std::log(10000.0) / half)).exp();
    const at::Tensor excess = (value - expected).to(at::kDouble).abs() - (angles * 1.8e-7 + 3e-7);
    EXPECT_LE(excess.max().item<double>(), 0);
  };
  expect_waves(ours.time, reference.time, parity_["in.timestep"]);
  ASSERT_EQ(ours.guidance.defined(), dit.model->config().guidance);
  if (ours.guidance.defined()) expect_waves(ours.guidance, reference.guidance, parity_["in.guidance"]);
  // From our own sinusoids: the same, up to what one unit in the last place does (a fp64 sinusoid does less than 1e-4).
  EXPECT_LE(error_max(Parity::tokens(run(*dit.model, parity_.inputs()).velocity), parity_["out"]), 1e-4);
}

TEST_P(Dit, Activations) {
  const Built dit = built();
  const Sinusoids times = parity_.sinusoids();
  const Trace trace = run(*dit.model, parity_.inputs(), false, &times);
  const Config& config = dit.model->config();
  expect_near(trace.prologue.shared[kTemb], "act.temb");
  expect_near(trace.prologue.shared[kModImg], "act.mod_img");
  expect_near(trace.prologue.shared[kModTxt], "act.mod_txt");
  expect_near(trace.prologue.shared[kModSingle], "act.mod_single");
  expect_near(repeated(trace.prologue.shared[kRope], 0), "act.rope.cos", 1e-7);
  expect_near(repeated(trace.prologue.shared[kRope], 1), "act.rope.sin", 1e-7);
  expect_near(trace.prologue.carried[0], "act.x_embedder");
  expect_near(trace.prologue.carried[1], "act.context_embedder");
  for (int64_t i = 0; i < config.num_layers; ++i) {
    expect_near(trace.after[i][0], "act.double." + std::to_string(i) + ".img");
    expect_near(trace.after[i][1], "act.double." + std::to_string(i) + ".txt");
  }
  for (int64_t i = 0; i < config.num_single_layers; ++i)
    expect_near(trace.after[config.num_layers + i][0], "act.single." + std::to_string(i));
  expect_near(dit.model->final_norm(trace.last), "act.norm_out");
  expect_near(Parity::tokens(trace.velocity), "out");
  EXPECT_EQ(trace.velocity.sizes(), parity_.inputs()["latents"].sizes());
}

/// Gradients of sum(out * cotangent): inputs and every parameter, plain and recomputed, bit for bit the same.
TEST_P(Dit, Gradients) {
  const Sinusoids times = parity_.sinusoids();
  const auto gradients = [&](bool recompute) {
    const Built dit = built({.trained = true});
    NamedTensors inputs = parity_.inputs();
    for (const char* name : {"latents", "prompt_embeds"}) inputs[name] = inputs[name].clone().requires_grad_();
    const Trace trace = run(*dit.model, inputs, recompute, &times);
    (Parity::tokens(trace.velocity) * parity_["cotangent"]).sum().backward();
    NamedTensors found{{"grad.in.hidden_states", Parity::tokens(inputs["latents"].grad())},
                       {"grad.in.encoder_hidden_states", inputs["prompt_embeds"].grad()}};
    for (const ParameterPtr& parameter : dit.builder->parameters)
      found["grad.param." + parameter->name()] = parameter->value().grad();
    return found;
  };
  const NamedTensors plain = gradients(false), recomputed = gradients(true);
  std::size_t references = 0;
  for (const auto& [name, tensor] : parity_.tensors()) {
    if (!name.starts_with("grad.")) continue;
    ++references;
    ASSERT_TRUE(plain.contains(name) && plain.at(name).defined()) << name;
    EXPECT_LE(error_max(plain.at(name), tensor), kGradient) << name;
    EXPECT_TRUE(at::equal(plain.at(name), recomputed.at(name))) << name;
  }
  EXPECT_EQ(references, plain.size());
}

TEST_P(Dit, References) {
  const Built dit = built();
  const Sinusoids times = parity_.sinusoids();
  NamedTensors inputs = parity_.inputs();
  const std::vector<at::Tensor> references = parity_.references();
  for (std::size_t r = 0; r < references.size(); ++r) inputs["reference_" + std::to_string(r)] = references[r];
  const at::Tensor out = run(*dit.model, inputs, false, &times).velocity;
  const int64_t target = parity_["in.hidden_states"].size(1);
  EXPECT_LE(error_max(Parity::tokens(out), parity_["ref.out"].narrow(1, 0, target)), kForward);
  inputs["img_ids"] = parity_["ref.in.img_ids"];
  EXPECT_TRUE(at::equal(run(*dit.model, inputs, false, &times).velocity, out)) << "the usual ids are the reference's";
}

TEST_P(Dit, ExactTimesInFp32) {
  const Built dit = built();
  const Sinusoids times = parity_.sinusoids("exact.in.");
  NamedTensors inputs = parity_.inputs("exact.in.");
  for (const char* name : {"latents", "prompt_embeds"}) inputs[name] = inputs[name].clone().requires_grad_();
  const at::Tensor out = Parity::tokens(run(*dit.model, inputs, false, &times).velocity);
  expect_near(out, "exact.out");
  (out * parity_["cotangent"]).sum().backward();
  expect_near(Parity::tokens(inputs["latents"].grad()), "exact.grad.in.hidden_states", kGradient);
  expect_near(inputs["prompt_embeds"].grad(), "exact.grad.in.encoder_hidden_states", kGradient);
}

TEST_P(Dit, ExactTimesInBf16) {
  const Built dit = built({.dtype = at::kBFloat16});
  NamedTensors inputs = parity_.inputs("exact.in.");
  for (const char* name : {"latents", "prompt_embeds"})
    inputs[name] = inputs[name].to(at::kBFloat16).clone().requires_grad_();
  const at::Tensor out = Parity::tokens(run(*dit.model, inputs).velocity);
  ASSERT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_LE(error_l2(out, parity_["exact.bf16.out"]), kBf16);
  EXPECT_LE(error_l2(out, parity_["exact.out"]), kBf16);
  (out.to(at::kFloat) * parity_["cotangent"]).sum().backward();
  const at::Tensor latents_grad = Parity::tokens(inputs["latents"].grad());
  EXPECT_LE(error_l2(latents_grad, parity_["exact.bf16.grad.in.hidden_states"]), kBf16Gradient);
  EXPECT_LE(error_l2(inputs["prompt_embeds"].grad(), parity_["exact.bf16.grad.in.encoder_hidden_states"]),
            kBf16Gradient);
}

TEST_P(Dit, RoundedTimesInBf16) {
  const Built rounded = built({.dtype = at::kBFloat16, .round_time = true});
  EXPECT_LE(error_l2(Parity::tokens(run(*rounded.model, parity_.inputs()).velocity), parity_["bf16.out"]), kBf16);
  const Built unrounded = built({.dtype = at::kBFloat16});
  EXPECT_LE(error_l2(Parity::tokens(run(*unrounded.model, parity_.inputs()).velocity), parity_["out"]), kBf16)
      << "without rounding, bf16 must follow the fp32 times";
}

TEST_P(Dit, IdsPerSample) {
  const Built dit = built();
  NamedTensors inputs = parity_.inputs();
  const at::Tensor img = parity_["in.img_ids"], txt = parity_["in.txt_ids"];
  const at::Tensor usual = run(*dit.model, inputs).velocity;
  inputs["img_ids"] = img, inputs["txt_ids"] = txt;
  EXPECT_TRUE(at::equal(run(*dit.model, inputs).velocity, usual)) << "2-D ids";
  const int64_t batch = usual.size(0);
  inputs["img_ids"] = img.unsqueeze(0).repeat({batch, 1, 1}),
  inputs["txt_ids"] = txt.unsqueeze(0).repeat({batch, 1, 1});
  EXPECT_TRUE(at::equal(run(*dit.model, inputs).velocity, usual)) << "3-D ids";

  at::Tensor own = inputs["img_ids"];
  own.select(0, 1).select(-1, 1).add_(5);  // sample 1 sits five rows lower, sample 0 where it was
  const at::Tensor mixed = run(*dit.model, inputs).velocity;
  EXPECT_LE(error_max(mixed[0], usual[0]), 1e-6);
  EXPECT_GT(error_max(mixed[1], usual[1]), 1e-3);
  for (int64_t b = 0; b < batch; ++b) {
    NamedTensors one;
    for (const auto& [name, tensor] : inputs) one[name] = tensor.narrow(0, b, 1);
    EXPECT_LE(error_max(mixed.narrow(0, b, 1), run(*dit.model, one).velocity), kForward) << "sample " << b;
  }
}

TEST_P(Dit, SameBitsTwice) {
  const Built one = built(), two = built();
  EXPECT_TRUE(at::equal(run(*one.model, parity_.inputs()).velocity, run(*two.model, parity_.inputs()).velocity));
}

/// The model of fused operations is the model of LibTorch's own, to rounding: output and every gradient.
TEST_P(Dit, FusedOperationsAreThePlainOnesToRounding) {
  for (const auto& [dtype, limit] : {std::pair{at::kFloat, kForward}, std::pair{at::kBFloat16, kBf16Gradient}}) {
    const auto results = [&, dtype = dtype](bool fused) {
      const Built dit = built({.dtype = dtype, .trained = true, .fused = fused});
      const Sinusoids times = parity_.sinusoids();
      const at::Tensor out = Parity::tokens(run(*dit.model, parity_.inputs(), false, &times).velocity);
      (out.to(at::kFloat) * parity_["cotangent"]).sum().backward();
      NamedTensors found{{"out", out.detach()}};
      for (const ParameterPtr& parameter : dit.builder->parameters)
        found[parameter->name()] = parameter->value().grad();
      return found;
    };
    const NamedTensors fused = results(true), plain = results(false);
    bool differs = false;
    for (const auto& [name, tensor] : plain) {
      EXPECT_LE(error_l2(fused.at(name), tensor), limit) << name;
      differs = differs || !at::equal(fused.at(name), tensor);
    }
    EXPECT_TRUE(differs) << "the option changes nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, Dit, ::testing::ValuesIn(parity_directories()), test::DirName{});

}  // namespace
}  // namespace trainer::flux2
