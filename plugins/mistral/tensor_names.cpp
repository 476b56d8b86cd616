/// @file Finding and checking tensors by name.
#include "tensor_names.hpp"

#include <trainer/sdk/key_contract.hpp>

#include <algorithm>
#include <charconv>
#include <span>
#include <string_view>
#include <utility>

namespace trainer::mistral {

namespace {

constexpr const char* kEmbeddings = "embed_tokens.weight";

bool plain(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kDouble;
}

std::string choose_prefix(const WeightSource& source, Family family) {
  static constexpr std::string_view kPrefixes[] = {"language_model.model.", "model.language_model.", "model."};
  const std::vector<std::string> names = source.names();
  for (const std::string_view prefix : std::span(kPrefixes).subspan(family == Family::mistral ? 0 : 2)) {
    const std::string head = std::string(prefix) + "layers.";
    const auto at = std::lower_bound(names.begin(), names.end(), head);
    const bool has_layers = at != names.end() && at->starts_with(head);
    if (has_layers || source.find(std::string(prefix) + kEmbeddings) != nullptr) return std::string(prefix);
  }
  return "model.";
}

std::vector<NamedShape> expected_tensors(const WeightSource& source, const std::string& prefix, const LmConfig& config,
                                         int64_t layers) {
  std::vector<NamedShape> expected = {{prefix + kEmbeddings, {config.vocab, config.hidden}}};
  for (int64_t i = 0; i < layers; ++i)
    for (LayerTensor& tensor : layer_tensors(config))
      expected.push_back({prefix + "layers." + std::to_string(i) + "." + tensor.name, std::move(tensor.shape)});
  for (NamedShape& tensor : expected) {
    const TensorInfo* info = source.find(tensor.name);
    if (info != nullptr && !plain(info->dtype)) tensor.dtype = "Float, BFloat16, Half or Double";
  }
  return expected;
}

/// Whether a tensor is one of the layers that are computed, or beside the embeddings: biases, scales and norms there
/// that this code does not apply would change the result without a word. The rest of a file is other parts of the
/// model.
bool takes_part(std::string_view name, const std::string& prefix, int64_t layers) {
  if (name.starts_with(prefix + "embed")) return true;
  const std::string head = prefix + "layers.";
  if (!name.starts_with(head) || name.ends_with("rotary_emb.inv_freq")) return false;
  int64_t layer = 0;
  std::from_chars(name.data() + head.size(), name.data() + name.size(), layer);
  return layer < layers;
}

}  // namespace

std::vector<LayerTensor> layer_tensors(const LmConfig& c) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  std::vector<LayerTensor> tensors = {
      {"input_layernorm.weight", {c.hidden}},
      {"self_attn.q_proj.weight", {q, c.hidden}},
      {"self_attn.k_proj.weight", {kv, c.hidden}},
      {"self_attn.v_proj.weight", {kv, c.hidden}},
      {"self_attn.o_proj.weight", {c.hidden, q}},
      {"post_attention_layernorm.weight", {c.hidden}},
      {"mlp.gate_proj.weight", {c.intermediate, c.hidden}},
      {"mlp.up_proj.weight", {c.intermediate, c.hidden}},
      {"mlp.down_proj.weight", {c.hidden, c.intermediate}},
  };
  if (c.qk_norm()) {
    tensors.push_back({"self_attn.q_norm.weight", {c.head_dim}});
    tensors.push_back({"self_attn.k_norm.weight", {c.head_dim}});
  }
  return tensors;
}

std::string find_tensors(const WeightSource& source, const LmConfig& config, int64_t layers) {
  const std::string prefix = choose_prefix(source, config.family);
  const auto ignored = [&](std::string_view name) { return !takes_part(name, prefix, layers); };
  check_key_contract(
      source.describe(), expected_tensors(source, prefix, config, layers), named_shapes(source),
      {.model = std::string("the text encoder \"") + name_of(config.family) + "\" that its config.json describes",
       .advice = "is the file complete and not quantised, and does config.json belong to it?",
       .ignored = ignored});
  return prefix;
}

}  // namespace trainer::mistral
