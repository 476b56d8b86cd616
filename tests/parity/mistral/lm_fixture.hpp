/// @file What the tests of the text encoders share: a parity directory's encoder with chosen options.
#pragma once

#include <gtest/gtest.h>

#include <ATen/ops/stack.h>
#include <algorithm>
#include <cctype>
#include <encoder.hpp>
#include <filesystem>
#include <support/parity.hpp>
#include <text/sdk_tokenizer.hpp>

namespace trainer::test {

/// A parity directory's text encoder, its files and its references.
struct LmCase {
  explicit LmCase(const std::filesystem::path& dir)
      : model(dir / "model"),
        config(file_json(model / "text_encoder" / "config.json")),
        reference(file_json(dir / "text.json")),
        expected(load_tensors(dir / "text.safetensors")),
        tokenizer(text::SdkTokenizer::load(model / "tokenizer")),
        family(config.at("model_type") == "qwen3" ? mistral::Family::qwen3 : mistral::Family::mistral) {
    style.family = family;
    style.max_tokens = reference.at("max_sequence_length");
    for (const auto& caption : reference.at("captions")) captions.push_back(caption.at("caption"));
    for (const auto& layer : reference.at("text_encoder_out_layers")) layers.push_back(layer);
  }

  [[nodiscard]] NamedTensors weights() const { return load_tensors(model / "text_encoder" / "model.safetensors"); }
  [[nodiscard]] std::shared_ptr<WeightSource> source() const { return std::make_shared<MemorySource>(weights()); }

  /// Values of the manifest's options, as the host would give them.
  [[nodiscard]] Table options(const std::vector<int64_t>& taps, int64_t micro_batch = 4) const {
    Array list;
    for (const int64_t tap : taps) list.push_back({tap});
    Table table = {{"max_tokens", {style.max_tokens}}, {"layers", {list}}, {"micro_batch", {micro_batch}}};
    if (family == mistral::Family::mistral) table["system_message"] = {std::string("newline")};
    return table;
  }
  [[nodiscard]] mistral::LmEncoder encoder(const Table& values, const std::shared_ptr<WeightSource>& source,
                                           at::ScalarType dtype = at::kFloat) const {
    const Options read("text_encoder", values);
    return mistral::LmEncoder({read, source, config.dump(), tokenizer, dtype, at::kCPU}, family);
  }
  [[nodiscard]] mistral::LmEncoder encoder(at::ScalarType dtype = at::kFloat) const {
    return encoder(options(layers), source(), dtype);
  }

  std::filesystem::path model;
  nlohmann::json config, reference;
  NamedTensors expected;
  std::shared_ptr<text::SdkTokenizer> tokenizer;
  mistral::Family family;
  mistral::PromptStyle style;
  std::vector<std::string> captions;
  std::vector<int64_t> layers;
};

/// "prompt_embeds" of every caption, one below the other: [captions, L, width].
inline at::Tensor stacked(const std::vector<NamedTensors>& results) {
  std::vector<at::Tensor> rows;
  for (const NamedTensors& result : results) {
    EXPECT_EQ(result.size(), 1U);
    rows.push_back(result.at("prompt_embeds"));
  }
  return at::stack(rows);
}

/// The error `body` throws; its message is "" when it throws none.
template <typename Body>
Error thrown(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {ExitCode::done, ""};
}

}  // namespace trainer::test
