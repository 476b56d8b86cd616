/// @file What the text encoders refuse, and in which words.
#include <ATen/TensorOperators.h>
#include <trainer/sdk/names.hpp>

#include <functional>

#include "lm_fixture.hpp"

namespace trainer::test {
namespace {

using nlohmann::json;

json plain_config() {
  return {{"model_type", "mistral"}, {"num_hidden_layers", 4},    {"hidden_size", 16},        {"intermediate_size", 40},
          {"vocab_size", 64},        {"num_attention_heads", 4},  {"num_key_value_heads", 2}, {"rms_norm_eps", 1e-5},
          {"rope_theta", 1e6},       {"sliding_window", nullptr}, {"hidden_act", "silu"}};
}

std::string refusal(const json& config, mistral::Family family = mistral::Family::mistral) {
  const Error error = thrown([&] { (void)mistral::read_config(config.dump(), family); });
  EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
  return error.what();
}

TEST(LmConfig, ReadsAPlainConfigAndDerivesHeadDim) {
  const mistral::LmConfig config = mistral::read_config(plain_config().dump(), mistral::Family::mistral);
  EXPECT_EQ(config.layers, 4);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.eps, 1e-5);
  EXPECT_FALSE(config.qk_norm());
}

TEST(LmConfig, RefusesSettingsThatChangeTheMaths) {
  const struct {
    const char* key;
    json value;
    const char* message;
  } cases[] = {
      {"sliding_window", 4096, "\"sliding_window\" is 4096; this encoder computes null only"},
      {"hidden_act", "gelu", "\"hidden_act\" is \"gelu\"; this encoder computes \"silu\" only"},
      {"attention_bias", true, "\"attention_bias\" is true; this encoder computes false only"},
      {"mlp_bias", true, "\"mlp_bias\" is true; this encoder computes false only"},
      {"rope_scaling",
       {{"type", "yarn"}, {"factor", 4.0}},
       "\"rope_scaling.type\" is \"yarn\"; this encoder computes \"default\" only"},
      {"rope_parameters",
       {{"rope_theta", 1e6}, {"rope_type", "llama3"}},
       "\"rope_parameters.rope_type\" is \"llama3\"; this encoder computes \"default\" only"},
      {"rope_parameters",
       {{"rope_theta", 1e6}, {"partial_rotary_factor", 0.5}},
       "\"rope_parameters.partial_rotary_factor\" is 0.5; this encoder computes 1.0 only"},
      {"rope_parameters", {{"rope_theta", 5e5}}, "\"rope_theta\" and \"rope_parameters.rope_theta\" differ"},
      {"layer_types",
       {"full_attention", "sliding_attention"},
       "\"layer_types\" has \"sliding_attention\"; this encoder computes \"full_attention\" only"},
      {"model_type", "qwen3",
       "model_type is \"qwen3\", expected \"mistral\" (for FLUX.2 klein set text_encoder.kind = \"qwen3\")"},
      {"model_type", "ministral3", "model_type is \"ministral3\", expected \"mistral\""},
  };
  for (const auto& c : cases) {
    json config = plain_config();
    config[c.key] = c.value;
    EXPECT_EQ(refusal(config), std::string("text encoder config.json: ") + c.message);
  }
}

TEST(LmConfig, QwenKeepsAWindowSizeBesideItsSwitch) {
  json config = plain_config();
  config["model_type"] = "qwen3";
  config["sliding_window"] = 4096;
  config["use_sliding_window"] = false;
  EXPECT_TRUE(mistral::read_config(config.dump(), mistral::Family::qwen3).qk_norm());
  config["use_sliding_window"] = true;
  EXPECT_EQ(refusal(config, mistral::Family::qwen3),
            "text encoder config.json: \"sliding_window\" is 4096; this encoder computes null only");
}

TEST(LmConfig, NamesMissingAndImpossibleNumbers) {
  json config = plain_config();
  config.erase("rms_norm_eps");
  EXPECT_EQ(refusal({{"model_type", "mistral3"}, {"text_config", config}}),
            "text encoder config.json: \"text_config.rms_norm_eps\" is missing");
  config = plain_config();
  config.erase("rope_theta");
  EXPECT_EQ(refusal(config), "text encoder config.json: \"rope_theta\" and \"rope_parameters.rope_theta\" are missing");
  for (const json& value : {json(0), json(-3), json(2.5), json("16"), json(1ULL << 63)}) {
    config = plain_config();
    config["hidden_size"] = value;
    EXPECT_EQ(refusal(config), "text encoder config.json: \"hidden_size\" is " + value.dump() +
                                   ", expected a whole number from 1 to 16777216");
  }
  config = plain_config();
  config["num_key_value_heads"] = 3;
  EXPECT_EQ(refusal(config), "text encoder config.json: 4 attention heads cannot share 3 key/value heads");
  config = plain_config();
  config["head_dim"] = 5;
  EXPECT_EQ(refusal(config), "text encoder config.json: the rotary embedding needs an even head_dim, got 5");
  EXPECT_EQ(refusal(json::array()), "text encoder config.json: not a JSON object");
  EXPECT_EQ(refusal({{"text_config", 3}}), "text encoder config.json: \"text_config\" is not an object");
}

TEST(LmConfig, RefusesDamagedText) {
  const Error broken = thrown([] { (void)mistral::read_config("{\"a\": ", mistral::Family::qwen3); });
  EXPECT_TRUE(std::string(broken.what()).starts_with("text encoder config.json: not valid JSON: ")) << broken.what();
  const Error absent = thrown([] { (void)mistral::read_config("", mistral::Family::qwen3); });
  EXPECT_EQ(absent.exit_code(), ExitCode::not_found);
}

constexpr const char* kAdvice = "\n  is the file complete and not quantised, and does config.json belong to it?";

class LmErrors : public testing::TestWithParam<std::filesystem::path> {
 protected:
  LmCase lm{GetParam()};
  /// The refusal of weights that `change` has touched.
  std::string weights_refusal(const std::function<void(NamedTensors&)>& change) {
    NamedTensors weights = lm.weights();
    change(weights);
    const Error error = thrown([&] {
      (void)lm.encoder(lm.options({3}), std::make_shared<MemorySource>(std::move(weights), "model.safetensors"));
    });
    EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
    return error.what();
  }
  std::string prefix() { return lm.family == mistral::Family::mistral ? "language_model.model." : "model."; }
  std::string head() {
    return std::string("model.safetensors: the tensors do not fit the text encoder \"") + mistral::name_of(lm.family) +
           "\" that its config.json describes";
  }
};

TEST_P(LmErrors, ListsEveryBadTensorAtOnce) {
  const std::string q = prefix() + "layers.0.self_attn.q_proj.weight";
  const std::string up = prefix() + "layers.2.mlp.up_proj.weight";
  const std::string down = prefix() + "layers.1.mlp.down_proj.weight";
  const std::string message = weights_refusal([&](NamedTensors& w) {
    w[prefix() + "layers.0.self_attn.q_prj.weight"] = w.at(q);
    w.erase(q);
    w[up] = w.at(up).t().contiguous();
    w[down] = w.at(down).to(at::kFloat8_e4m3fn);
    w[prefix() + "layers.1.mlp.down_proj.weight_scale"] = w.at(up);
  });
  const std::string i = std::to_string(lm.weights().at(up).size(0)), h = std::to_string(lm.weights().at(up).size(1));
  const std::string near = prefix() + "layers.0.self_attn.q_prj.weight",
                    q_shape = shape_text(lm.weights().at(q).sizes());
  EXPECT_EQ(message, head() + "\n  1 missing:\n    \"" + q + "\" " + q_shape + " (did you mean \"" + near +
                         "\"?)\n  2 unexpected, which the model would leave out:\n    \"" + near + "\" " + q_shape +
                         " (did you mean \"" + q + "\"?)\n    \"" + down + "_scale\" [" + h + ", " + i +
                         "]\n  1 of the wrong shape:\n    \"" + up + "\": the model needs [" + i + ", " + h +
                         "], the file has [" + h + ", " + i + "]\n  1 of the wrong dtype:\n    \"" + down +
                         "\": the model needs Float, BFloat16, Half or Double, the file has Float8_e4m3fn" + kAdvice);
}

TEST_P(LmErrors, ComparesTheEmbeddingsToo) {
  const std::string name = prefix() + "embed_tokens.weight", wrong = prefix() + "embed_token.weight";
  const std::string shape = shape_text(lm.weights().at(name).sizes());
  const std::string message = weights_refusal([&](NamedTensors& w) {
    w[wrong] = w.at(name);
    w.erase(name);
  });
  EXPECT_EQ(message, head() + "\n  1 missing:\n    \"" + name + "\" " + shape + " (did you mean \"" + wrong +
                         "\"?)\n  1 unexpected, which the model would leave out:\n    \"" + wrong + "\" " + shape +
                         " (did you mean \"" + name + "\"?)" + kAdvice);
}

TEST_P(LmErrors, ChecksNothingBeyondTheLastTappedLayer) {
  NamedTensors weights = lm.weights();
  std::erase_if(weights, [](const auto& item) { return item.first.find("layers.3.") != std::string::npos; });
  EXPECT_NO_THROW((void)lm.encoder(lm.options({3}), std::make_shared<MemorySource>(weights)));
}

TEST_P(LmErrors, ShortensTheListForAnotherModel) {
  const std::string message = weights_refusal([](NamedTensors& w) {
    const at::Tensor any = w.begin()->second;
    w = {{"double_blocks.0.img_mod.lin.weight", any}};
  });
  const std::size_t wanted = 1 + 3 * (lm.family == mistral::Family::qwen3 ? 11U : 9U);
  const std::string shape = shape_text(lm.weights().at(prefix() + "embed_tokens.weight").sizes());
  EXPECT_TRUE(message.starts_with(head() + "\n  " + std::to_string(wanted) +
                                  " missing:\n    \"model.embed_tokens.weight\" " + shape + "\n"))
      << message;
  EXPECT_TRUE(message.ends_with("\n    and " + std::to_string(wanted - 20) + " more" + kAdvice)) << message;
}

TEST_P(LmErrors, RefusesBadOptions) {
  const auto refusal = [&](const char* key, const Value& value) {
    Table options = lm.options({1});
    options[key] = value;
    const Error error = thrown([&] { (void)lm.encoder(options, lm.source()); });
    EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
    return std::string(error.what());
  };
  const mistral::LmConfig config = mistral::read_config(lm.config.dump(), lm.family);
  const std::string n = std::to_string(config.layers), last = std::to_string(config.layers - 1);
  EXPECT_EQ(refusal("layers", {Array{}}), "\"text_encoder.layers\" is empty; name at least one hidden state");
  EXPECT_EQ(refusal("layers", {Array{{config.layers}}}), "\"text_encoder.layers\" has " + n +
                                                             ", but this text encoder has " + n +
                                                             " layers: give numbers from 0 to " + last);
  EXPECT_EQ(refusal("max_tokens", {int64_t{0}}), "\"text_encoder.max_tokens\" is 0, expected 1 or more");
  EXPECT_EQ(refusal("micro_batch", {int64_t{-1}}), "\"text_encoder.micro_batch\" is -1, expected 1 or more");
  if (lm.family == mistral::Family::mistral) {
    EXPECT_EQ(refusal("system_message", {std::string("tab")}),
              "\"text_encoder.system_message\" is \"tab\", expected \"newline\" or \"space\"");
  }
}

/// Knows no token but those named; every text is token 70000.
class BareTokenizer final : public Tokenizer {
 public:
  explicit BareTokenizer(bool complete) : complete_(complete) {}
  [[nodiscard]] std::vector<int64_t> encode(std::string_view) const override { return {70000}; }
  [[nodiscard]] std::optional<int64_t> id(std::string_view token) const override {
    return complete_ || token == "<s>" ? std::optional<int64_t>(1) : std::nullopt;
  }

 private:
  bool complete_;
};

TEST_P(LmErrors, RefusesAnotherModelsTokenizer) {
  const Options options("text_encoder", lm.options({1}));
  const auto make = [&](std::shared_ptr<Tokenizer> tokenizer) {
    return mistral::LmEncoder({options, lm.source(), lm.config.dump(), std::move(tokenizer), at::kFloat, at::kCPU},
                              lm.family);
  };
  const bool dev = lm.family == mistral::Family::mistral;
  const Error lacking = thrown([&] { (void)make(std::make_shared<BareTokenizer>(false)); });
  EXPECT_EQ(std::string(lacking.what()),
            std::string("the tokenizer has no token ") +
                (dev ? "\"[SYSTEM_PROMPT]\", \"[/SYSTEM_PROMPT]\", \"[INST]\", \"[/INST]\", \"<pad>\""
                     : "\"<|im_start|>\", \"<|im_end|>\", \"<|endoftext|>\"") +
                ", which the prompt of text encoder \"" + mistral::name_of(lm.family) +
                "\" needs; check that text_encoder.tokenizer names this encoder's tokenizer");
  const Error none = thrown([&] { (void)make(nullptr); });
  EXPECT_EQ(none.exit_code(), ExitCode::bad_recipe);
  mistral::LmEncoder encoder = make(std::make_shared<BareTokenizer>(true));
  const Error outside = thrown([&] { (void)encoder.encode(lm.captions); });
  EXPECT_TRUE(
      std::string(outside.what()).starts_with("the tokenizer gave token id 70000, but the text encoder knows "));
}

INSTANTIATE_TEST_SUITE_P(Dirs, LmErrors, testing::ValuesIn(parity_dirs()), DirName{});

}  // namespace
}  // namespace trainer::test
