/// @file Captions to rows of token ids: the prompt templates of FLUX.2 dev (Mistral) and klein (Qwen3). Used by
/// encoder.cpp; sources: diffusers pipelines/flux2 (system_messages.py, pipeline_flux2.py, pipeline_flux2_klein.py).
#pragma once

#include <span>
#include <string>
#include <trainer/sdk/encoders.hpp>
#include <vector>

#include "lm_config.hpp"

namespace trainer::mistral {

/// Changes with the text around the caption, the padding or the truncation; part of cache keys.
inline constexpr int kTemplateVersion = 1;

struct PromptStyle {
  Family family = Family::mistral;
  bool newline = true;       ///< mistral: the system message breaks its line with "\n"; else with " "
  int64_t max_tokens = 512;  ///< length of every row
};

/// One caption as the language model sees it. Mistral pads on the left, Qwen3 on the right.
struct Tokens {
  std::vector<int64_t> ids;  ///< [max_tokens]
  int64_t first = 0;         ///< position of the first token that is not padding
  int64_t count = 0;         ///< tokens that are not padding, at least 1; attention_mask is 1 for exactly these
  int64_t cut = 0;           ///< tokens of the prompt beyond max_tokens, which are left out
};

/// The caption inside its template. Tags of the template that a caption contains stay as they are and become special
/// tokens, as in diffusers; only "[IMG]" is removed, for Mistral.
[[nodiscard]] std::string render_prompt(const std::string& caption, const PromptStyle& style);

/// Throws Error (bad_input) naming every special token of the template that `tokenizer` lacks.
void check_tokenizer(const PromptStyle& style, const Tokenizer& tokenizer);

/// Renders, tokenizes, cuts what exceeds max_tokens at the end, pads.
[[nodiscard]] Tokens tokenize_caption(const std::string& caption, const PromptStyle& style, const Tokenizer& tokenizer);

/// Names the captions whose end the model will not see, which nothing else of a run shows; "" when there is none.
[[nodiscard]] std::string cut_captions(std::span<const std::string> captions, std::span<const Tokens> tokens,
                                       int64_t max_tokens);

}  // namespace trainer::mistral
