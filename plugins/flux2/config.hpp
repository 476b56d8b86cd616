/// @file The sizes of a FLUX.2 transformer, from config.json (diffusers' fields) and from the tensors themselves; where
/// both speak they must agree. Used by the model factory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer {
class WeightSource;
}

namespace trainer::flux2 {

inline constexpr int64_t kLargestSize = 1'000'000;  ///< keeps products of sizes inside int64 whatever a file claims

/// Every size the computation depends on. Defaults are those that no tensor shape can tell.
struct Config {
  int64_t in_channels = 0, out_channels = 0;  ///< latent channels in and out
  int64_t num_layers = 0;                     ///< double-stream blocks
  int64_t num_single_layers = 0;
  int64_t heads = 0, head_dim = 0;
  int64_t joint_dim = 0;      ///< width J of prompt_embeds
  int64_t time_channels = 0;  ///< width of the sinusoid, even
  int64_t mlp_hidden = 0;     ///< width after SwiGLU
  std::vector<int64_t> axes;  ///< RoPE dimensions of the T, H, W, L axes; their sum is head_dim
  double theta = 2000;
  double eps = 1e-6;      ///< of every LayerNorm and RMSNorm
  bool guidance = false;  ///< has the embedder of the guidance scale
  bool fused = true;      ///< how it is computed (trainer/sdk/ops/fused.hpp); not in the file

  [[nodiscard]] int64_t hidden() const { return heads * head_dim; }
  bool operator==(const Config&) const = default;
};

/// The sizes that the text of a config.json states; `of` names the model in messages. Throws Error (bad_input,
/// MODEL_CONFIG) as resolve_config does for the text alone.
Config parse_config(const std::string& text, const std::string& of);

/// `weights` under canonical (diffusers) names; `config_json`: text of config.json, or "" when there is none.
/// Without a config the axes are equal quarters of head_dim. Throws Error (bad_input): MODEL_CONFIG for a config that
/// is damaged, has a field this code does not know (it may change the computation) or contradicts the tensors (all
/// contradictions at once); MODEL_KEYS when the tensors are not those of a FLUX.2 transformer or too few to tell.
Config resolve_config(const std::string& config_json, const WeightSource& weights);

}  // namespace trainer::flux2
