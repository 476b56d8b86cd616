/// @file The text encoders against transformers and diffusers (text.safetensors, text.json of the parity directories).
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <iostream>
#include <numeric>

#include "lm_fixture.hpp"

namespace trainer::test {
namespace {

class LmParity : public testing::TestWithParam<std::filesystem::path> {
 protected:
  LmCase lm{GetParam()};
};

TEST_P(LmParity, PromptsAreRenderedAsTheTemplateDoes) {
  for (const auto& caption : lm.reference.at("captions"))
    EXPECT_EQ(render_prompt(caption.at("caption"), lm.style), caption.at("rendered").get<std::string>());
}

TEST_P(LmParity, TokenIdsAndMaskAreExact) {
  for (std::size_t c = 0; c < lm.captions.size(); ++c) {
    const mistral::Tokens tokens = tokenize_caption(lm.captions[c], lm.style, *lm.tokenizer);
    const auto row = static_cast<int64_t>(c);
    EXPECT_TRUE(at::equal(at::tensor(tokens.ids, at::kLong), lm.expected.at("input_ids")[row])) << lm.captions[c];
    EXPECT_EQ(tokens.count, lm.reference.at("captions")[c].at("tokens").get<int64_t>());
    std::vector<int64_t> mask(tokens.ids.size(), 0);
    std::fill_n(mask.begin() + tokens.first, tokens.count, 1);
    EXPECT_TRUE(at::equal(at::tensor(mask, at::kLong), lm.expected.at("attention_mask")[row])) << lm.captions[c];
  }
}

TEST_P(LmParity, EveryHiddenStateMatches) {
  std::vector<int64_t> all(static_cast<std::size_t>(*std::max_element(lm.layers.begin(), lm.layers.end())) + 1);
  std::iota(all.begin(), all.end(), 0);
  mistral::LmEncoder encoder = lm.encoder(lm.options(all), lm.source());
  const at::Tensor states = stacked(encoder.encode(std::span(lm.captions).first(1)));
  const int64_t width = states.size(2) / static_cast<int64_t>(all.size());
  double worst = 0;
  for (const int64_t k : all)
    worst =
        std::max(worst, max_error(states.narrow(2, k * width, width), lm.expected.at("hidden." + std::to_string(k))));
  std::cout << "hidden states, largest error " << worst << "\n";
  EXPECT_LE(worst, 1e-5);
}

TEST_P(LmParity, ConditioningMatchesOnRealAndOnPadRows) {
  mistral::LmEncoder encoder = lm.encoder();
  const at::Tensor embeds = stacked(encoder.encode(lm.captions));
  const at::Tensor& expected = lm.expected.at("prompt_embeds");
  const at::Tensor real = lm.expected.at("attention_mask").to(at::kBool);
  const double on_real = max_error(embeds.index({real}), expected.index({real}));
  const double on_pad = max_error(embeds.index({~real}), expected.index({~real}));
  std::cout << "prompt_embeds, error on real rows " << on_real << ", on pad rows " << on_pad << "\n";
  EXPECT_EQ(embeds.scalar_type(), at::kFloat);
  EXPECT_LE(max_error(embeds, expected), 1e-5);
  EXPECT_LE(on_real, 1e-5);
  EXPECT_LE(on_pad, 1e-5);
}

TEST_P(LmParity, Bf16StaysNearFp32) {
  mistral::LmEncoder encoder = lm.encoder(at::kBFloat16);
  const at::Tensor embeds = stacked(encoder.encode(lm.captions));
  const double error = l2_error(embeds, lm.expected.at("prompt_embeds"));
  std::cout << "bf16 against fp32, l2 " << error << "\n";
  EXPECT_EQ(embeds.scalar_type(), at::kBFloat16);
  EXPECT_LE(error, 0.04);
  EXPECT_GT(error, 1e-4) << "this was not computed in bf16";
}

INSTANTIATE_TEST_SUITE_P(Dirs, LmParity, testing::ValuesIn(parity_dirs()), DirName{});

}  // namespace
}  // namespace trainer::test
