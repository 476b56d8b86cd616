/// @file Reading config.json and inferring the same sizes from tensor shapes.
#include "config.hpp"

#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "names.hpp"

namespace trainer::flux2 {
namespace {

using nlohmann::json;

constexpr int64_t kLargestSize = 1'000'000;  // keeps products of sizes inside int64 whatever a file claims
constexpr int64_t kMostBlocks = 10'000;
const std::string kDouble = "transformer_blocks.", kSingle = "single_transformer_blocks.";

[[noreturn]] void bad_config(const std::string& what, const WeightSource& weights) {
  throw Error(ExitCode::bad_input, "config.json of " + weights.describe() + ": " + what, "MODEL_CONFIG");
}

/// A value for a message, in ASCII, shortened.
std::string shown(const json& value) {
  constexpr std::size_t kShown = 120;
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

/// The fields of diffusers' Flux2Transformer2DModel with its defaults, taken from `object` when present.
class Fields {
 public:
  Fields(const json& object, const WeightSource& weights) : object_(object), weights_(weights) {}

  int64_t integer(const char* name, int64_t otherwise, int64_t low = 1, int64_t high = kLargestSize) {
    const json* value = take(name);
    if (value == nullptr || value->is_null()) return otherwise;
    if (!value->is_number_integer()) fail(name, *value, "an integer");
    // An unsigned value above int64 would turn negative: compare as double first.
    const double wide = value->get<double>();
    if (wide < static_cast<double>(low) || wide > static_cast<double>(high))
      fail(name, *value, "between " + std::to_string(low) + " and " + std::to_string(high));
    return value->get<int64_t>();
  }
  double positive(const char* name, double otherwise) {
    const json* value = take(name);
    if (value == nullptr || value->is_null()) return otherwise;
    if (!value->is_number() || !(value->get<double>() > 0)) fail(name, *value, "a number above 0");
    return value->get<double>();
  }
  bool boolean(const char* name, bool otherwise) {
    const json* value = take(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) fail(name, *value, "true or false");
    return value->get<bool>();
  }
  std::vector<int64_t> axes(const char* name) {
    const json* value = take(name);
    if (value == nullptr) return {32, 32, 32, 32};
    if (!value->is_array() || value->size() != 4) fail(name, *value, "four even integers");
    std::vector<int64_t> sizes;
    for (const json& item : *value) {
      if (!item.is_number_unsigned() || item.get<uint64_t>() > kLargestSize || item.get<int64_t>() % 2 != 0 ||
          item.get<int64_t>() == 0)
        fail(name, *value, "four even integers above 0");
      sizes.push_back(item.get<int64_t>());
    }
    return sizes;
  }
  void class_name() {
    const json* value = take("_class_name");
    if (value != nullptr && *value != "Flux2Transformer2DModel")
      fail("_class_name", *value, "\"Flux2Transformer2DModel\": these are not the weights of a FLUX.2 transformer");
  }
  /// Every field that nobody asked for, except notes (a leading underscore), is refused.
  void finish() const {
    for (const auto& [key, value] : object_.items()) {
      if (key.starts_with('_') || known_.contains(key)) continue;
      const std::vector<std::string> known(known_.begin(), known_.end());
      bad_config("unknown field " + quote_name(key) + did_you_mean(key, known) +
                     ": it may change the computation in a way this version does not reproduce",
                 weights_);
    }
  }

 private:
  const json* take(const char* name) {
    known_.insert(name);
    const auto it = object_.find(name);
    return it == object_.end() ? nullptr : &*it;
  }
  [[noreturn]] void fail(const char* name, const json& value, const std::string& expected) const {
    bad_config("field \"" + std::string(name) + "\" is " + shown(value) + ", it must be " + expected, weights_);
  }
  const json& object_;
  const WeightSource& weights_;
  std::set<std::string> known_;
};

Config from_json(const std::string& text, const WeightSource& weights) {
  json object;
  try {
    object = json::parse(text);
  } catch (const json::exception& error) {
    bad_config(std::string("not valid JSON: ") + error.what(), weights);
  }
  if (!object.is_object()) bad_config("it holds no JSON object", weights);
  Fields fields(object, weights);
  fields.class_name();
  if (const int64_t patch = fields.integer("patch_size", 1); patch != 1)
    bad_config("patch_size is " + std::to_string(patch) + "; only 1 is supported", weights);
  Config c;
  c.in_channels = fields.integer("in_channels", 128);
  c.out_channels = fields.integer("out_channels", c.in_channels);
  c.num_layers = fields.integer("num_layers", 8, 0, kMostBlocks);
  c.num_single_layers = fields.integer("num_single_layers", 48, 0, kMostBlocks);
  c.head_dim = fields.integer("attention_head_dim", 128);
  c.heads = fields.integer("num_attention_heads", 48);
  c.joint_dim = fields.integer("joint_attention_dim", 15360);
  c.time_channels = fields.integer("timestep_guidance_channels", 256);
  const double mlp = static_cast<double>(c.hidden()) * fields.positive("mlp_ratio", 3.0);
  c.axes = fields.axes("axes_dims_rope");
  c.theta = fields.positive("rope_theta", 2000);
  c.eps = fields.positive("eps", 1e-6);
  c.guidance = fields.boolean("guidance_embeds", true);
  fields.finish();
  if (c.hidden() > kLargestSize || !(mlp >= 1 && mlp <= kLargestSize)) bad_config("the sizes are too large", weights);
  c.mlp_hidden = static_cast<int64_t>(mlp);
  if (c.time_channels % 2 != 0) bad_config("timestep_guidance_channels must be even", weights);
  if (std::accumulate(c.axes.begin(), c.axes.end(), int64_t{0}) != c.head_dim)
    bad_config("the sum of axes_dims_rope must be attention_head_dim, " + std::to_string(c.head_dim), weights);
  return c;
}

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
  const Config config = from_json(config_json, weights);
  std::string contradictions;
  for (const Evidence& item : evidence)
    if (const int64_t said = value_of(config, item.field); said != item.value)
      contradictions += "\n  " + item.field + ": config.json says " + std::to_string(said) + ", the tensors say " +
                        std::to_string(item.value) + " (" + item.because + ")";
  if (!contradictions.empty())
    bad_config("it does not describe these tensors; is it of another model, or the file incomplete?" + contradictions,
               weights);
  return config;
}

}  // namespace trainer::flux2
