/// @file Reading config.json.
#include "lm_config.hpp"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>
#include <utility>

namespace trainer::mistral {

namespace {

using Json = nlohmann::json;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ExitCode::bad_input, "text encoder config.json: " + message);
}

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

/// One JSON object and where it stands in the file. A null value counts as absent, as it does in transformers.
class Section {
 public:
  Section(const Json& object, std::string path) : object_(&object), path_(std::move(path)) {
    if (!object.is_object()) fail(path_.empty() ? "not a JSON object" : "\"" + path_ + "\" is not an object");
  }
  [[nodiscard]] std::string full(const char* key) const { return path_.empty() ? key : path_ + "." + key; }
  [[nodiscard]] const Json* find(const char* key) const {
    const auto it = object_->find(key);
    return it == object_->end() || it->is_null() ? nullptr : &*it;
  }
  [[nodiscard]] std::optional<Section> section(const char* key) const {
    const Json* value = find(key);
    return value == nullptr ? std::nullopt : std::optional<Section>(std::in_place, *value, full(key));
  }
  [[nodiscard]] std::optional<int64_t> integer(const char* key, int64_t max) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    const bool fits = value->is_number_integer() && *value >= 1 && *value <= max;
    if (!fits)
      fail("\"" + full(key) + "\" is " + shown(*value) + ", expected a whole number from 1 to " + std::to_string(max));
    return value->get<int64_t>();
  }
  [[nodiscard]] std::optional<double> positive(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    const double number = value->is_number() ? value->get<double>() : -1.0;
    if (!(number > 0.0 && std::isfinite(number)))
      fail("\"" + full(key) + "\" is " + shown(*value) + ", expected a number above 0");
    return number;
  }
  template <typename T>
  [[nodiscard]] T need(const std::optional<T>& value, const char* key) const {
    if (!value) fail("\"" + full(key) + "\" is missing");
    return *value;
  }
  /// Fails unless `key` is absent or equal to `only`.
  void expect(const char* key, const Json& only) const {
    const Json* value = find(key);
    if (value != nullptr && *value != only)
      fail("\"" + full(key) + "\" is " + shown(*value) + "; this encoder computes " + shown(only) + " only");
  }

 private:
  const Json* object_;
  std::string path_;
};

Json parse(const std::string& text) {
  if (text.empty())
    throw Error(ExitCode::not_found, "the text encoder needs a config.json beside its weights; there is none");
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail(std::string("not valid JSON: ") + error.what());
  }
}

std::string model_type(const Section& section) {
  const Json* value = section.find("model_type");
  if (value == nullptr) fail("\"" + section.full("model_type") + "\" is missing");
  return value->is_string() ? value->get<std::string>() : shown(*value);
}

/// The section that describes the language model.
Section text_section(const Json& root, Family family) {
  Section top(root, "");
  if (family == Family::qwen3) {
    const std::string type = model_type(top);
    if (type == "qwen3") return top;
    fail("model_type is " + quote_name(type) + ", expected \"qwen3\"" +
         (type.starts_with("mistral") ? " (for FLUX.2 dev set text_encoder.kind = \"mistral\")" : ""));
  }
  const std::optional<Section> nested = top.section("text_config");
  const Section& section = nested ? *nested : top;
  const std::string type = model_type(section);
  if (type != "mistral")
    fail(section.full("model_type") + " is " + quote_name(type) + ", expected \"mistral\"" +
         (type == "qwen3" ? " (for FLUX.2 klein set text_encoder.kind = \"qwen3\")" : ""));
  return section;
}

/// Rotary embedding: transformers 4 writes rope_theta and rope_scaling, transformers 5 rope_parameters.
double rope_theta(const Section& section) {
  std::optional<double> theta = section.positive("rope_theta");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const std::optional<Section> rope = section.section(key);
    if (!rope) continue;
    for (const char* type : {"rope_type", "type"}) rope->expect(type, "default");
    rope->expect("partial_rotary_factor", 1.0);
    if (const std::optional<double> inner = rope->positive("rope_theta")) {
      if (theta && *theta != *inner)
        fail("\"" + section.full("rope_theta") + "\" and \"" + rope->full("rope_theta") + "\" differ");
      theta = inner;
    }
  }
  section.expect("partial_rotary_factor", 1.0);
  if (!theta)
    fail("\"" + section.full("rope_theta") + "\" and \"" + section.full("rope_parameters.rope_theta") +
         "\" are missing");
  return *theta;
}

void refuse_other_maths(const Section& section, Family family) {
  section.expect("hidden_act", "silu");
  section.expect("attention_bias", false);
  section.expect("mlp_bias", false);
  // Qwen3 keeps the window's size beside a switch; Mistral has no switch.
  const Json* used = section.find("use_sliding_window");
  const bool off = family == Family::qwen3 && (used == nullptr || *used == false);
  if (!off) section.expect("sliding_window", nullptr);
  if (const Json* types = section.find("layer_types")) {
    if (!types->is_array()) fail("\"" + section.full("layer_types") + "\" is not a list");
    for (const Json& type : *types)
      if (type != "full_attention")
        fail("\"" + section.full("layer_types") + "\" has " + shown(type) +
             "; this encoder computes \"full_attention\" only");
  }
}

}  // namespace

const char* name_of(Family family) { return family == Family::mistral ? "mistral" : "qwen3"; }

LmConfig read_config(const std::string& text, Family family) {
  constexpr int64_t kMany = 1 << 24;  // bounds products of two such numbers well inside int64
  const Json root = parse(text);
  const Section section = text_section(root, family);
  refuse_other_maths(section, family);
  LmConfig config;
  config.family = family;
  const auto integer = [&](const char* key, int64_t max) { return section.need(section.integer(key, max), key); };
  config.layers = integer("num_hidden_layers", 10000);
  config.hidden = integer("hidden_size", kMany);
  config.intermediate = integer("intermediate_size", kMany);
  config.vocab = integer("vocab_size", std::numeric_limits<int32_t>::max());
  config.heads = integer("num_attention_heads", kMany);
  config.kv_heads = integer("num_key_value_heads", kMany);
  if (config.heads % config.kv_heads != 0)
    fail(std::to_string(config.heads) + " attention heads cannot share " + std::to_string(config.kv_heads) +
         " key/value heads");
  const std::optional<int64_t> head_dim = section.integer("head_dim", kMany);
  if (!head_dim && config.hidden % config.heads != 0)
    fail("\"" + section.full("head_dim") + "\" is missing, and hidden_size is not a multiple of num_attention_heads");
  config.head_dim = head_dim.value_or(config.hidden / config.heads);
  if (config.head_dim % 2 != 0)
    fail("the rotary embedding needs an even head_dim, got " + std::to_string(config.head_dim));
  config.eps = section.need(section.positive("rms_norm_eps"), "rms_norm_eps");
  config.rope_theta = rope_theta(section);
  return config;
}

}  // namespace trainer::mistral
