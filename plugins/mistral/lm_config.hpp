/// @file What the text encoders need of config.json, in the styles of transformers 4 and 5. Used by encoder.cpp.
#pragma once

#include <cstdint>
#include <string>

namespace trainer::mistral {

enum class Family { mistral, qwen3 };
/// The component's name in recipes: "mistral" or "qwen3".
[[nodiscard]] const char* name_of(Family family);

/// Shape and constants of a decoder-only transformer. Linear weights are [out, in], without biases.
struct LmConfig {
  Family family = Family::mistral;
  int64_t layers = 0, hidden = 0, intermediate = 0, vocab = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  ///< heads * head_dim may differ from hidden
  double eps = 0, rope_theta = 0;
  /// Per-head RMSNorm of queries and keys before the rotary embedding.
  [[nodiscard]] bool qk_norm() const { return family == Family::qwen3; }
};

/// Reads the text of a config.json: `text_config` of the multimodal class (Mistral3) or the plain form; rope_theta or
/// rope_parameters.rope_theta. A number the computation needs must be there (head_dim alone has a default,
/// hidden / heads). Throws Error (bad_input) naming the key for anything missing, of a wrong type or out of range, and
/// for settings this code does not compute: another model_type or activation, sliding windows, rotary scaling, biases.
[[nodiscard]] LmConfig read_config(const std::string& text, Family family);

}  // namespace trainer::mistral
