/// @file Damaged, incomplete and foreign models, and inputs that do not fit: what is reported, word for word.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <trainer/sdk/error.hpp>

#include <flux2/names.hpp>

#include "fixture.hpp"

namespace trainer::flux2 {
namespace {

/// A consistent model of zeros: 1 + 2 blocks of hidden size 16.
Config small_config() {
  return {.in_channels = 4,
          .out_channels = 4,
          .num_layers = 1,
          .num_single_layers = 2,
          .heads = 2,
          .head_dim = 8,
          .joint_dim = 12,
          .time_channels = 32,
          .mlp_hidden = 48,
          .axes = {2, 2, 2, 2},
          .guidance = true};
}
nlohmann::json small_json() {
  return {{"_class_name", "Flux2Transformer2DModel"},
          {"in_channels", 4},
          {"num_layers", 1},
          {"num_single_layers", 2},
          {"attention_head_dim", 8},
          {"num_attention_heads", 2},
          {"joint_attention_dim", 12},
          {"timestep_guidance_channels", 32},
          {"axes_dims_rope", {2, 2, 2, 2}}};
}
std::shared_ptr<MemoryWeights> small_weights() {
  auto weights = std::make_shared<MemoryWeights>();
  for (const auto& [name, shape] : expected_tensors(small_config())) weights->set(name, at::zeros(shape));
  return weights;
}

struct Fault {
  std::string code, text;
};
template <typename Function>
Fault fault_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
    return {error.code(), error.what()};
  }
  return {"none", ""};
}
Fault build_fault(const std::shared_ptr<MemoryWeights>& weights, const std::string& config = "") {
  return fault_of([&] { build(weights, config); });
}
Fault config_fault(const nlohmann::json& config) { return build_fault(small_weights(), config.dump()); }

TEST(Flux2Faults, AWholeModelBuilds) {
  const Built by_tensors = build(small_weights(), ""), by_config = build(small_weights(), small_json().dump());
  EXPECT_EQ(by_tensors.model->config(), small_config());
  EXPECT_EQ(by_config.model->config(), small_config());
  EXPECT_EQ(by_config.model->describe(),
            "FLUX.2 of hidden size 16, 1 double + 2 single blocks, 0.02 M parameters, guidance embedder");
}

TEST(Flux2Faults, MissingUnexpectedAndWrongShapeTogether) {
  const auto weights = small_weights();
  weights->rename("single_transformer_blocks.1.attn.to_out.weight", "single_transformer_blocks.1.attn.to_ouT.weight");
  weights->set("transformer_blocks.0.attn.to_v.weight", at::zeros({16, 15}));
  const Fault fault = build_fault(weights);
  EXPECT_EQ(fault.code, "MODEL_KEYS");
  EXPECT_EQ(fault.text,
            "weights.safetensors: the tensors do not fit this FLUX.2 transformer"
            "\n  1 missing:\n    \"single_transformer_blocks.1.attn.to_out.weight\" [16, 64] (did you mean "
            "\"single_transformer_blocks.1.attn.to_ouT.weight\"?)"
            "\n  1 unexpected, which the model would leave out:"
            "\n    \"single_transformer_blocks.1.attn.to_ouT.weight\" [16, 64] (did you mean "
            "\"single_transformer_blocks.1.attn.to_out.weight\"?)"
            "\n  1 of the wrong shape:"
            "\n    \"transformer_blocks.0.attn.to_v.weight\": the model needs [16, 16], the file has [16, 15]"
            "\n  is this the right file, and the right variant in the recipe?");
}

TEST(Flux2Faults, LongListsAreCut) {
  const auto weights = small_weights();
  for (int i = 0; i < 23; ++i) weights->set("lora.extra." + std::to_string(i), at::zeros({1}));
  const Fault fault = build_fault(weights);
  EXPECT_NE(fault.text.find("23 unexpected, which the model would leave out:\n    \"lora.extra.0\" [1]\n"),
            std::string::npos)
      << fault.text;
  EXPECT_NE(fault.text.find("\n    and 3 more"), std::string::npos) << fault.text;
}

TEST(Flux2Faults, ForeignFile) {
  auto weights = std::make_shared<MemoryWeights>();
  weights->set("double_blocks.0.img_mod.lin.weight", at::zeros({6, 1}));
  EXPECT_EQ(build_fault(weights).text,
            "weights.safetensors (original layout, shown under diffusers' names) holds no FLUX.2 transformer: the "
            "modulation layers shared by all blocks are missing (FLUX.1 has none either). Its first tensor is "
            "\"double_blocks.0.img_mod.lin.weight\"");
  EXPECT_EQ(build_fault(std::make_shared<MemoryWeights>()).code, "MODEL_KEYS");
}

TEST(Flux2Faults, SizesNobodyTells) {
  const auto weights = small_weights();
  weights->erase("x_embedder.weight");
  EXPECT_EQ(build_fault(weights).text,
            "weights.safetensors: its tensors do not tell the hidden size (one is missing or has another rank). Use a "
            "complete file, or put its config.json beside it");
  EXPECT_EQ(build_fault(weights, small_json().dump()).text,
            "weights.safetensors: the tensors do not fit this FLUX.2 transformer\n  1 missing:\n    "
            "\"x_embedder.weight\" [16, 4]\n  is this the right file, and the right variant in the recipe?");
}

TEST(Flux2Faults, ConfigContradictsTensors) {
  nlohmann::json config = small_json();
  config["num_single_layers"] = 3;
  config["mlp_ratio"] = 4.0;
  config["guidance_embeds"] = false;
  const Fault fault = config_fault(config);
  EXPECT_EQ(fault.code, "MODEL_CONFIG");
  EXPECT_EQ(
      fault.text,
      "config.json of weights.safetensors: it does not describe these tensors; is it of another model, or the file "
      "incomplete?"
      "\n  num_single_layers: config.json says 3, the tensors say 2 (blocks single_transformer_blocks.*)"
      "\n  MLP width: config.json says 64, the tensors say 48 (transformer_blocks.0.ff.linear_out.weight is [16, "
      "48])"
      "\n  guidance_embeds: config.json says 0, the tensors say 1 "
      "(time_guidance_embed.guidance_embedder.linear_1.weight is present)");
}

TEST(Flux2Faults, ConfigFields) {
  const auto text = [](const char* key, const nlohmann::json& value) {
    nlohmann::json config = small_json();
    config[key] = value;
    const Fault fault = config_fault(config);
    EXPECT_EQ(fault.code, "MODEL_CONFIG") << key;
    return fault.text;
  };
  EXPECT_EQ(text("rope_teta", 10000),
            "config.json of weights.safetensors: unknown field \"rope_teta\" (did you mean \"rope_theta\"?): it may "
            "change the "
            "computation in a way this version does not reproduce");
  EXPECT_EQ(text("num_layers", "1"),
            "config.json of weights.safetensors: field \"num_layers\" is \"1\", it must be an integer");
  EXPECT_EQ(
      text("num_layers", 18446744073709551615ULL),
      "config.json of weights.safetensors: field \"num_layers\" is 18446744073709551615, it must be between 0 and "
      "10000");
  EXPECT_EQ(text("patch_size", 2), "config.json of weights.safetensors: patch_size is 2; only 1 is supported");
  EXPECT_EQ(text("axes_dims_rope", {2, 2, 2, 4}),
            "config.json of weights.safetensors: the sum of axes_dims_rope must be attention_head_dim, 8");
  EXPECT_EQ(text("axes_dims_rope", {1, 3, 2, 2}),
            "config.json of weights.safetensors: field \"axes_dims_rope\" is [1,3,2,2], it must be four even integers "
            "above 0");
  EXPECT_EQ(text("eps", 0), "config.json of weights.safetensors: field \"eps\" is 0, it must be a number above 0");
  EXPECT_EQ(text("_class_name", "FluxTransformer2DModel"),
            "config.json of weights.safetensors: field \"_class_name\" is \"FluxTransformer2DModel\", it must be "
            "\"Flux2Transformer2DModel\": these are not the weights of a FLUX.2 transformer");
  const std::string numbers = text("eps", std::vector<int>(100'000, 1));
  EXPECT_TRUE(numbers.ends_with("1,1,1,1..., it must be a number above 0")) << numbers.size();
  EXPECT_LT(numbers.size(), 250U);
  const Fault damaged = build_fault(small_weights(), "{\"in_channels\": 4,");
  EXPECT_EQ(damaged.code, "MODEL_CONFIG");
  EXPECT_NE(damaged.text.find("config.json of weights.safetensors: not valid JSON: "), std::string::npos);
  EXPECT_EQ(build_fault(small_weights(), "[]").text, "config.json of weights.safetensors: it holds no JSON object");
}

TEST(Flux2Faults, ConfigDefaultsAreThoseOfDev) {
  const Fault fault = config_fault(nlohmann::json::object());
  EXPECT_NE(fault.text.find("hidden size: config.json says 6144, the tensors say 16"), std::string::npos) << fault.text;
  EXPECT_NE(fault.text.find("joint_attention_dim: config.json says 15360"), std::string::npos);
  EXPECT_NE(fault.text.find("num_single_layers: config.json says 48"), std::string::npos);
}

TEST(Flux2Faults, Inputs) {
  const Built built = build(small_weights(), "");
  const NamedTensors good{{"latents", at::zeros({2, 4, 1, 3, 5})},
                          {"prompt_embeds", at::zeros({2, 7, 12})},
                          {"timestep", at::zeros({2})},
                          {"guidance", at::zeros({2})}};
  EXPECT_EQ(built.model->epilogue(run(*built.model, good).last).sizes(), at::IntArrayRef({2, 4, 1, 3, 5}));
  const auto text = [&](const char* name, const at::Tensor& tensor) {
    NamedTensors inputs = good;
    inputs[name] = tensor;
    const Fault fault = fault_of([&] { built.model->prologue(inputs); });
    EXPECT_EQ(fault.code, "MODEL_INPUT") << name;
    return fault.text;
  };
  EXPECT_EQ(text("guidance", {}), "input \"guidance\" of the FLUX.2 transformer is missing");
  EXPECT_EQ(text("latents", at::zeros({2, 4, 3, 3, 5})),
            "input \"latents\" of the FLUX.2 transformer is [2, 4, 3, 3, 5], expected [-1, 4, 1, -1, -1] (-1: any)");
  EXPECT_EQ(text("prompt_embeds", at::zeros({1, 7, 12})),
            "input \"prompt_embeds\" of the FLUX.2 transformer is [1, 7, 12], expected [2, -1, 12] (-1: any)");
  EXPECT_EQ(text("timestep", at::zeros({1})),
            "input \"timestep\" of the FLUX.2 transformer is [1], expected [2] (-1: any)");
  EXPECT_EQ(text("img_ids", at::zeros({14, 4}, at::kLong)),
            "input \"img_ids\" of the FLUX.2 transformer is [14, 4], expected [15, 4] (-1: any)");
  EXPECT_EQ(text("reference_1", at::zeros({2, 4, 1, 2, 2})),
            "input \"reference_0\" of the FLUX.2 transformer is missing");
}

/// The published models: known sizes and parameter counts.
TEST(Flux2Faults, PublishedSizes) {
  const auto count = [](int64_t heads, int64_t doubles, int64_t singles, int64_t joint, bool guidance) {
    Config c = small_config();
    c.in_channels = c.out_channels = 128;
    c.heads = heads, c.head_dim = 128, c.num_layers = doubles, c.num_single_layers = singles, c.joint_dim = joint;
    c.time_channels = 256, c.mlp_hidden = 3 * c.hidden(), c.guidance = guidance;
    const Shapes shapes = expected_tensors(c);
    return std::pair(parameter_count(shapes), shapes.size());
  };
  EXPECT_EQ(count(48, 8, 48, 15360, true), std::pair(int64_t{32'223'281'152}, std::size_t{331}));
  EXPECT_EQ(count(32, 8, 24, 12288, false), std::pair(int64_t{9'078'581'248}, std::size_t{233}));
  EXPECT_EQ(count(24, 5, 20, 7680, false), std::pair(int64_t{3'875'544'576}, std::size_t{169}));
}

TEST(Flux2Traits, Diffusion) {
  const Built built = build(small_weights(), "");
  const DiffusionTraits& traits = *built.model->diffusion();
  EXPECT_EQ(traits.time_at_noise, 1.0);
  EXPECT_EQ(traits.velocity_sign, 1.0);
  EXPECT_EQ(traits.latent_channels, 4);
  EXPECT_TRUE(traits.guidance_embedded);
  EXPECT_EQ(traits.tokens(1, 64, 48), 3072);
  EXPECT_DOUBLE_EQ(traits.training_mu(4096), 1.15);
  EXPECT_EQ(traits.sigmas(256, 4).size(), 5U);
  EXPECT_EQ(built.model->blocks()[2]->info().name, "single.1");
  EXPECT_EQ(built.model->blocks()[0]->info().linears.size(), 12U);
  EXPECT_EQ(built.model->blocks()[0]->info().parameters.size(), 4U);
}

}  // namespace
}  // namespace trainer::flux2
