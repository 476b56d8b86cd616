/// @file Behaviour of the text encoders that needs no reference: streaming, independence of batching, names, identity.
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <set>

#include "lm_fixture.hpp"

namespace trainer::test {
namespace {

std::vector<NamedTensors> encode(mistral::LmEncoder encoder, std::span<const std::string> captions) {
  return encoder.encode(captions);
}

/// Counts how often each tensor is read, and which rows of the embeddings.
class CountingSource final : public WeightSource {
 public:
  explicit CountingSource(std::shared_ptr<WeightSource> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] std::vector<std::string> names() const override { return inner_->names(); }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override { return inner_->find(name); }
  [[nodiscard]] at::Tensor read(std::string_view name) override {
    order.emplace_back(name);
    return inner_->read(name);
  }
  [[nodiscard]] at::Tensor read_rows(std::string_view name, int64_t begin, int64_t end) override {
    EXPECT_TRUE(name.ends_with("embed_tokens.weight"));
    for (int64_t row = begin; row < end; ++row) EXPECT_TRUE(rows.insert(row).second) << "row " << row << " read twice";
    return inner_->read_rows(name, begin, end);
  }
  [[nodiscard]] std::string describe() const override { return inner_->describe(); }
  [[nodiscard]] std::string identity() const override { return inner_->identity(); }
  std::vector<std::string> order;
  std::set<int64_t> rows;

 private:
  std::shared_ptr<WeightSource> inner_;
};

int64_t layer_of(const std::string& name) {
  return std::stoll(name.substr(name.find("layers.") + std::string("layers.").size()));
}

class Encoder : public testing::TestWithParam<std::filesystem::path> {
 protected:
  LmCase lm{GetParam()};
};

TEST_P(Encoder, ReadsEachNeededTensorOnceInLayerOrderAndOnlyTheRowsItNeeds) {
  auto source = std::make_shared<CountingSource>(lm.source());
  mistral::LmEncoder encoder = lm.encoder(lm.options({0, 2}, 2), source);
  EXPECT_TRUE(source->order.empty() && source->rows.empty()) << "weights were read before a caption came";
  encoder.encode(lm.captions);
  const std::size_t per_layer = lm.family == mistral::Family::qwen3 ? 11 : 9;
  EXPECT_EQ(source->order.size(), 2 * per_layer);
  EXPECT_EQ(std::set<std::string>(source->order.begin(), source->order.end()).size(), 2 * per_layer);
  EXPECT_TRUE(std::is_sorted(source->order.begin(), source->order.end(),
                             [](const auto& a, const auto& b) { return layer_of(a) < layer_of(b); }));
  EXPECT_EQ(layer_of(source->order.back()), 1);
  std::set<int64_t> ids;
  for (const std::string& caption : lm.captions) {
    const mistral::Tokens tokens = tokenize_caption(caption, lm.style, *lm.tokenizer);
    ids.insert(tokens.ids.begin(), tokens.ids.end());
  }
  EXPECT_EQ(source->rows, ids);
}

TEST_P(Encoder, SameInputGivesSameBits) {
  mistral::LmEncoder encoder = lm.encoder();
  const at::Tensor first = stacked(encoder.encode(lm.captions));
  EXPECT_TRUE(same_bits(first, stacked(encoder.encode(lm.captions))));
  EXPECT_TRUE(same_bits(first, stacked(encode(lm.encoder(), lm.captions))));
}

TEST_P(Encoder, CompanyOfACaptionMattersByRoundingOnly) {
  const at::Tensor together = stacked(encode(lm.encoder(), lm.captions));
  for (const int64_t micro_batch : {1, 3, 64}) {
    const at::Tensor other = stacked(encode(lm.encoder(lm.options(lm.layers, micro_batch), lm.source()), lm.captions));
    EXPECT_LE(max_error(other, together), 2e-6) << "micro_batch " << micro_batch;
  }
  for (std::size_t c = 0; c < lm.captions.size(); ++c) {
    const at::Tensor alone = stacked(encode(lm.encoder(), std::span(lm.captions).subspan(c, 1)));
    EXPECT_LE(max_error(alone[0], together[static_cast<int64_t>(c)]), 2e-6) << lm.captions[c];
  }
}

TEST_P(Encoder, LeftPaddingIsOneStateForAllCaptionsAndRightPaddingIsNot) {
  const at::Tensor embeds = stacked(encode(lm.encoder(), std::span(lm.captions).first(2)));
  const bool left = lm.family == mistral::Family::mistral;
  const int64_t pad = left ? 0 : lm.style.max_tokens - 1;
  EXPECT_EQ(same_bits(embeds[0][pad], embeds[1][pad]), left);
  EXPECT_EQ(same_bits(embeds[0][pad], embeds[0][left ? 1 : pad - 1]), left);
  EXPECT_GT(embeds[0][pad].abs().max().item<double>(), 0.0);
}

TEST_P(Encoder, LayersComeInTheOrderAskedForAndMayRepeat) {
  const auto captions = std::span(lm.captions).first(1);
  const int64_t width = encode(lm.encoder(lm.options({1}), lm.source()), captions)[0].at("prompt_embeds").size(1);
  const at::Tensor all = stacked(encode(lm.encoder(lm.options({2, 0, 2, 1}), lm.source()), captions));
  EXPECT_EQ(all.sizes().vec(), (std::vector<int64_t>{1, lm.style.max_tokens, 4 * width}));
  int64_t column = 0;
  for (const int64_t layer : {2, 0, 2, 1}) {
    const at::Tensor one = stacked(encode(lm.encoder(lm.options({layer}), lm.source()), captions));
    EXPECT_TRUE(same_bits(one, all.narrow(2, column++ * width, width).contiguous())) << "layer " << layer;
  }
}

TEST_P(Encoder, NoCaptionsGiveNoResultsAndReadNothing) {
  auto source = std::make_shared<CountingSource>(lm.source());
  EXPECT_TRUE(encode(lm.encoder(lm.options(lm.layers), source), {}).empty());
  EXPECT_TRUE(source->order.empty() && source->rows.empty());
}

TEST_P(Encoder, KeepsNoAutogradHistoryOfWeightsThatWantGradients) {
  NamedTensors weights = lm.weights();
  for (auto& [name, tensor] : weights) tensor.set_requires_grad(true);
  const auto results = encode(lm.encoder(lm.options({2}), std::make_shared<MemorySource>(weights)), lm.captions);
  EXPECT_FALSE(results[0].at("prompt_embeds").requires_grad());
}

TEST_P(Encoder, BothConfigStylesGiveTheSameBits) {
  const at::Tensor expected = stacked(encode(lm.encoder(), lm.captions));
  const bool nested = lm.config.contains("text_config");
  nlohmann::json& section = nested ? lm.config.at("text_config") : lm.config;
  const nlohmann::json theta =
      section.contains("rope_theta") ? section["rope_theta"] : section.at("rope_parameters").at("rope_theta");
  section.erase("rope_theta");
  section.erase("rope_parameters");
  const nlohmann::json base = section;
  section["rope_theta"] = theta;
  section["rope_scaling"] = nullptr;
  section["torch_dtype"] = "bfloat16";
  EXPECT_TRUE(same_bits(stacked(encode(lm.encoder(), lm.captions)), expected)) << "transformers 4";
  section = base;
  section["rope_parameters"] = {{"rope_theta", theta}, {"rope_type", "default"}};
  section["dtype"] = "bfloat16";
  EXPECT_TRUE(same_bits(stacked(encode(lm.encoder(), lm.captions)), expected)) << "transformers 5";
  if (nested) {
    const nlohmann::json inner = section;
    lm.config = inner;
    EXPECT_TRUE(same_bits(stacked(encode(lm.encoder(), lm.captions)), expected)) << "plain MistralForCausalLM";
  }
}

TEST_P(Encoder, EveryPrefixGivesTheSameBits) {
  const at::Tensor expected = stacked(encode(lm.encoder(), lm.captions));
  const bool multimodal = lm.family == mistral::Family::mistral;
  const std::string old = multimodal ? "language_model.model." : "model.";
  for (const std::string prefix : {"language_model.model.", "model.language_model.", "model."}) {
    NamedTensors renamed;
    for (const auto& [name, tensor] : lm.weights())
      if (name.starts_with(old)) renamed[prefix + name.substr(old.size())] = tensor;
    if (multimodal || prefix == "model.") {
      const auto source = std::make_shared<MemorySource>(renamed);
      EXPECT_TRUE(same_bits(stacked(encode(lm.encoder(lm.options(lm.layers), source), lm.captions)), expected))
          << prefix;
    }
  }
}

TEST_P(Encoder, IdentityNamesWhatChangesTheResultAndNothingElse) {
  const auto identity = [&](const Table& options, at::ScalarType dtype = at::kFloat) {
    return lm.encoder(options, lm.source(), dtype).identity();
  };
  const Table plain = lm.options({1, 2});
  const std::string base = identity(plain);
  EXPECT_TRUE(base.starts_with(lm.family == mistral::Family::mistral ? "mistral template 1 newline; model 1; tokens "
                                                                     : "qwen3 template 1; model 1; tokens "))
      << base;
  EXPECT_EQ(identity(lm.options({1, 2}, 9)), base);
  EXPECT_NE(identity(lm.options({2, 1})), base);
  EXPECT_NE(identity(plain, at::kBFloat16), base);
  Table longer = plain;
  longer["max_tokens"] = {lm.style.max_tokens + 1};
  EXPECT_NE(identity(longer), base);
  nlohmann::json& section = lm.config.contains("text_config") ? lm.config.at("text_config") : lm.config;
  section["rms_norm_eps"] = 3e-5;
  EXPECT_NE(identity(plain), base);
}

INSTANTIATE_TEST_SUITE_P(Dirs, Encoder, testing::ValuesIn(parity_dirs()), DirName{});

/// One id a byte, and the templates' special tokens.
class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::vector<int64_t> encode(std::string_view text) const override { return {text.begin(), text.end()}; }
  [[nodiscard]] std::optional<int64_t> id(std::string_view token) const override {
    return token == "<pad>" ? 1000 : token == "<|endoftext|>" ? 2000 : 1;
  }
};

TEST(Prompt, SystemMessageHasALineBreakOrASpace) {
  mistral::PromptStyle style;
  const std::string with_newline = render_prompt("a cat", style);
  style.newline = false;
  const std::string with_space = render_prompt("a cat", style);
  EXPECT_EQ(
      with_space,
      "<s>[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured responses focusing "
      "on object relationships, object attribution and actions without speculation.[/SYSTEM_PROMPT][INST]a cat[/INST]");
  std::string changed = with_space;
  changed.replace(changed.find("object attribution"), 18, "object\nattribution");
  EXPECT_EQ(with_newline, changed);
}

TEST(Prompt, ImageTagIsRemovedInOnePassAsPythonReplaceDoes) {
  const mistral::PromptStyle style;
  const std::string before = render_prompt("", style);
  const std::string head = before.substr(0, before.size() - std::string("[/INST]").size());
  EXPECT_EQ(render_prompt("a[IMG][IMG]b [I[IMG]MG]", style), head + "ab [IMG][/INST]");
  EXPECT_EQ(mistral::render_prompt("[IMG]", {mistral::Family::qwen3, true, 8}),
            "<|im_start|>user\n[IMG]<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

TEST(Prompt, PadsOnTheFamilysSideAndCutsTheEnd) {
  const ByteTokenizer tokenizer;
  mistral::PromptStyle style{mistral::Family::qwen3, true, 80};
  const std::string text = render_prompt("xy", style);
  const mistral::Tokens right = tokenize_caption("xy", style, tokenizer);
  const auto count = static_cast<int64_t>(text.size());
  EXPECT_EQ(right.count, count);
  EXPECT_EQ(right.first, 0);
  EXPECT_EQ(right.ids[0], '<');
  EXPECT_EQ(right.ids[text.size()], 2000);
  EXPECT_EQ(std::count(right.ids.begin(), right.ids.end(), 2000), 80 - count);

  style = {mistral::Family::mistral, true, 300};
  const mistral::Tokens left = tokenize_caption("xy", style, tokenizer);
  EXPECT_EQ(left.first, 300 - left.count);
  EXPECT_EQ(left.ids[static_cast<std::size_t>(left.first) - 1], 1000);
  EXPECT_EQ(left.ids[static_cast<std::size_t>(left.first)], '<');
  EXPECT_EQ(left.ids.back(), ']');

  style.max_tokens = 5;
  const mistral::Tokens cut = tokenize_caption("xy", style, tokenizer);
  EXPECT_EQ(cut.ids, (std::vector<int64_t>{'<', 's', '>', '[', 'S'}));
  EXPECT_EQ(cut.first, 0);
  EXPECT_EQ(cut.count, 5);
  EXPECT_EQ(cut.cut, left.count - 5);
  EXPECT_EQ(left.cut, 0);
}

TEST(Prompt, NamesCaptionsThatAreCut) {
  const ByteTokenizer tokenizer;
  mistral::PromptStyle style{mistral::Family::qwen3, true, 80};
  const auto room = static_cast<std::size_t>(80 - tokenize_caption("", style, tokenizer).count);
  std::vector<std::string> captions{"short", std::string(room, 'a'), std::string(room + 2, 'b')};
  std::vector<mistral::Tokens> tokens;
  const auto told = [&] {
    tokens.clear();
    for (const std::string& caption : captions) tokens.push_back(tokenize_caption(caption, style, tokenizer));
    return cut_captions(captions, tokens, 80);
  };
  EXPECT_EQ(told(),
            "1 caption is longer, with its template, than text_encoder.max_tokens = 80: the end is left out\n"
            "  2 of 82 tokens of \"" +
                captions.back() + "\"");
  captions.insert(captions.end(), 3, std::string(room + 1, 'c'));
  EXPECT_NE(told().find("4 captions are longer"), std::string::npos) << told();
  EXPECT_TRUE(told().ends_with("\n  and of 1 more")) << told();
  captions.resize(2);
  EXPECT_EQ(told(), "");
}

}  // namespace
}  // namespace trainer::test
