/// @file The prompt templates.
#include "prompt.hpp"

#include <algorithm>
#include <span>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

namespace trainer::mistral {

namespace {

constexpr std::string_view kSystemStart =
    "You are an AI that reasons about image descriptions. You give structured responses focusing on object "
    "relationships, object";
constexpr std::string_view kSystemEnd = "attribution and actions without speculation.";

std::string without(std::string text, std::string_view part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) text.erase(at, part.size());
  return text;
}

const char* pad_token(Family family) { return family == Family::mistral ? "<pad>" : "<|endoftext|>"; }

std::span<const char* const> template_tokens(Family family) {
  static constexpr const char* kMistral[] = {"<s>",    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
                                             "[INST]", "[/INST]",         "<pad>"};
  static constexpr const char* kQwen3[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};
  if (family == Family::mistral) return kMistral;
  return kQwen3;
}

}  // namespace

std::string render_prompt(const std::string& caption, const PromptStyle& style) {
  if (style.family == Family::qwen3)
    return "<|im_start|>user\n" + caption + "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
  std::string text = "<s>[SYSTEM_PROMPT]";
  text.append(kSystemStart).append(style.newline ? "\n" : " ").append(kSystemEnd);
  return text + "[/SYSTEM_PROMPT][INST]" + without(caption, "[IMG]") + "[/INST]";
}

void check_tokenizer(const PromptStyle& style, const Tokenizer& tokenizer) {
  std::string missing;
  for (const char* token : template_tokens(style.family))
    if (!tokenizer.id(token)) missing += std::string(missing.empty() ? "" : ", ") + "\"" + token + "\"";
  if (missing.empty()) return;
  throw Error(ExitCode::bad_input, "the tokenizer has no token " + missing + ", which the prompt of text encoder \"" +
                                       name_of(style.family) +
                                       "\" needs; check that text_encoder.tokenizer names this encoder's tokenizer");
}

Tokens tokenize_caption(const std::string& caption, const PromptStyle& style, const Tokenizer& tokenizer) {
  const std::optional<int64_t> pad = tokenizer.id(pad_token(style.family));
  if (!pad) check_tokenizer(style, tokenizer);
  std::vector<int64_t> ids = tokenizer.encode(render_prompt(caption, style));
  const auto length = static_cast<std::size_t>(style.max_tokens);
  Tokens tokens;
  tokens.count = static_cast<int64_t>(std::min(ids.size(), length));
  tokens.cut = static_cast<int64_t>(ids.size()) - tokens.count;
  ids.resize(length, *pad);
  if (style.family == Family::mistral) {
    tokens.first = style.max_tokens - tokens.count;
    std::rotate(ids.begin(), ids.begin() + tokens.count, ids.end());
  }
  tokens.ids = std::move(ids);
  return tokens;
}

std::string cut_captions(std::span<const std::string> captions, std::span<const Tokens> tokens, int64_t max_tokens) {
  constexpr std::size_t kNamed = 3;
  std::size_t cut = 0;
  std::string named;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i].cut > 0 && ++cut <= kNamed)
      named += "\n  " + std::to_string(tokens[i].cut) + " of " + std::to_string(tokens[i].count + tokens[i].cut) +
               " tokens of " + quote_name(captions[i]);
  if (cut == 0) return {};
  if (cut > kNamed) named += "\n  and of " + std::to_string(cut - kNamed) + " more";
  return std::to_string(cut) + (cut == 1 ? " caption is longer, with its" : " captions are longer, with their") +
         " template, than text_encoder.max_tokens = " + std::to_string(max_tokens) + ": the end is left out" + named;
}

}  // namespace trainer::mistral
