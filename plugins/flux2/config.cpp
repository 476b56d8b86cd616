/// @file Inferring from tensor shapes the sizes that config.json tells, and comparing the two.
#include "config.hpp"

#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>
#include <trainer/sdk/weights.hpp>

#include <set>
#include <string_view>

#include "names.hpp"

namespace trainer::flux2 {
namespace {

const std::string kDouble = "transformer_blocks.", kSingle = "single_transformer_blocks.";

/// What one tensor says about one size.
struct Evidence {
  std::string field;
  int64_t value = 0;
  std::string because;
};

/// Number of different N in names "<prefix>N.": bounded by the number of tensors, whatever the names claim.
int64_t count_blocks(const std::vector<std::string>& names, const std::string& prefix) {
  std::set<std::string_view> indices;
  for (const std::string& name : names) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    const std::size_t dot = rest.find('.');
    if (dot != std::string_view::npos) indices.insert(rest.substr(0, dot));
  }
  return static_cast<int64_t>(indices.size());
}

/// Collects the sizes; a tensor that is absent or of another rank says nothing.
std::vector<Evidence> infer(const WeightSource& weights) {
  std::vector<Evidence> found;
  const auto shape = [&](const std::string& name, std::size_t rank) -> const std::vector<int64_t>* {
    const TensorInfo* info = weights.find(name);
    return info != nullptr && info->shape.size() == rank ? &info->shape : nullptr;
  };
  const auto say = [&](const std::string& field, int64_t value, const std::string& name) {
    found.push_back({field, value, name + " is " + shape_text(weights.find(name)->shape)});
  };
  int64_t hidden = 0;
  if (const auto* s = shape("x_embedder.weight", 2)) {
    hidden = (*s)[0];
    say("hidden size", hidden, "x_embedder.weight");
    say("in_channels", (*s)[1], "x_embedder.weight");
  }
  if (const auto* s = shape("proj_out.weight", 2)) say("out_channels", (*s)[0], "proj_out.weight");
  if (const auto* s = shape("context_embedder.weight", 2))
    say("joint_attention_dim", (*s)[1], "context_embedder.weight");
  const std::string time = "time_guidance_embed.timestep_embedder.linear_1.weight";
  if (const auto* s = shape(time, 2)) say("timestep_guidance_channels", (*s)[1], time);
  const std::vector<std::string> names = weights.names();
  const int64_t doubles = count_blocks(names, kDouble), singles = count_blocks(names, kSingle);
  found.push_back({"num_layers", doubles, "blocks " + kDouble + "*"});
  found.push_back({"num_single_layers", singles, "blocks " + kSingle + "*"});
  const std::string norm = (doubles > 0 ? kDouble : kSingle) + "0.attn.norm_q.weight";
  if (const auto* s = shape(norm, 1)) say("attention_head_dim", (*s)[0], norm);
  const std::string mlp = doubles > 0 ? kDouble + "0.ff.linear_out.weight" : kSingle + "0.attn.to_out.weight";
  if (const auto* s = shape(mlp, 2)) say("MLP width", (*s)[1] - (doubles > 0 ? 0 : hidden), mlp);
  const std::string guidance = "time_guidance_embed.guidance_embedder.linear_1.weight";
  const bool embedded = weights.find(guidance) != nullptr;
  found.push_back({"guidance_embeds", embedded ? 1 : 0, guidance + (embedded ? " is present" : " is absent")});
  return found;
}

int64_t value_of(const Config& c, const std::string& field) {
  if (field == "hidden size") return c.hidden();
  if (field == "in_channels") return c.in_channels;
  if (field == "out_channels") return c.out_channels;
  if (field == "joint_attention_dim") return c.joint_dim;
  if (field == "timestep_guidance_channels") return c.time_channels;
  if (field == "num_layers") return c.num_layers;
  if (field == "num_single_layers") return c.num_single_layers;
  if (field == "attention_head_dim") return c.head_dim;
  if (field == "MLP width") return c.mlp_hidden;
  return c.guidance ? 1 : 0;
}

Config from_evidence(const std::vector<Evidence>& evidence, const WeightSource& weights) {
  const auto get = [&](const std::string& field) {
    for (const Evidence& item : evidence)
      if (item.field == field && item.value >= 0 && item.value <= kLargestSize) return item.value;
    throw Error(ExitCode::bad_input,
                weights.describe() + ": its tensors do not tell the " + field +
                    " (one is missing or has another rank). Use a complete file, or put its config.json beside it",
                "MODEL_KEYS");
  };
  Config c;
  const int64_t hidden = get("hidden size");
  c.in_channels = get("in_channels");
  c.out_channels = get("out_channels");
  c.joint_dim = get("joint_attention_dim");
  c.time_channels = get("timestep_guidance_channels");
  c.num_layers = get("num_layers");
  c.num_single_layers = get("num_single_layers");
  c.head_dim = get("attention_head_dim");
  c.mlp_hidden = get("MLP width");
  c.guidance = get("guidance_embeds") != 0;
  if (c.head_dim == 0 || c.head_dim % 8 != 0 || hidden % c.head_dim != 0 || c.time_channels % 2 != 0 || hidden == 0)
    throw Error(ExitCode::bad_input,
                weights.describe() + ": hidden size " + std::to_string(hidden) + ", head size " +
                    std::to_string(c.head_dim) + " and " + std::to_string(c.time_channels) +
                    " time channels do not follow the published models; put its config.json beside it",
                "MODEL_CONFIG");
  c.heads = hidden / c.head_dim;
  c.axes.assign(4, c.head_dim / 4);
  return c;
}

}  // namespace

Config resolve_config(const std::string& config_json, const WeightSource& weights) {
  if (weights.find("double_stream_modulation_img.linear.weight") == nullptr &&
      weights.find("single_stream_modulation.linear.weight") == nullptr) {
    const std::vector<std::string> names = weights.names();
    throw Error(ExitCode::bad_input,
                weights.describe() + " holds no FLUX.2 transformer: the modulation layers shared by all blocks are " +
                    "missing (FLUX.1 has none either)" +
                    (names.empty() ? "; it has no tensors" : ". Its first tensor is \"" + names.front() + "\""),
                "MODEL_KEYS");
  }
  const std::vector<Evidence> evidence = infer(weights);
  if (config_json.empty()) return from_evidence(evidence, weights);
  const Config config = parse_config(config_json, weights.describe());
  std::string contradictions;
  for (const Evidence& item : evidence)
    if (const int64_t said = value_of(config, item.field); said != item.value)
      contradictions += "\n  " + item.field + ": config.json says " + std::to_string(said) + ", the tensors say " +
                        std::to_string(item.value) + " (" + item.because + ")";
  if (!contradictions.empty())
    throw Error(ExitCode::bad_input,
                "config.json of " + weights.describe() +
                    ": it does not describe these tensors; is it of another model, or the file incomplete?" +
                    contradictions,
                "MODEL_CONFIG");
  return config;
}

}  // namespace trainer::flux2
