/// @file Reading config.json. Free of LibTorch, so that it can be fuzzed.
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "config.hpp"

namespace trainer::flux2 {
namespace {

using nlohmann::json;

constexpr int64_t kMostBlocks = 10'000;

[[noreturn]] void bad_config(const std::string& what, const std::string& of) {
  throw Error(ExitCode::bad_input, "config.json of " + of + ": " + what, "MODEL_CONFIG");
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
  Fields(const json& object, const std::string& of) : object_(object), of_(of) {}

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
                 of_);
    }
  }

 private:
  const json* take(const char* name) {
    known_.insert(name);
    const auto it = object_.find(name);
    return it == object_.end() ? nullptr : &*it;
  }
  [[noreturn]] void fail(const char* name, const json& value, const std::string& expected) const {
    bad_config("field \"" + std::string(name) + "\" is " + shown(value) + ", it must be " + expected, of_);
  }
  const json& object_;
  const std::string& of_;
  std::set<std::string> known_;
};

}  // namespace

Config parse_config(const std::string& text, const std::string& of) {
  json object;
  try {
    object = json::parse(text);
  } catch (const json::exception& error) {
    bad_config(std::string("not valid JSON: ") + error.what(), of);
  }
  if (!object.is_object()) bad_config("it holds no JSON object", of);
  Fields fields(object, of);
  fields.class_name();
  if (const int64_t patch = fields.integer("patch_size", 1); patch != 1)
    bad_config("patch_size is " + std::to_string(patch) + "; only 1 is supported", of);
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
  if (c.hidden() > kLargestSize || !(mlp >= 1 && mlp <= kLargestSize)) bad_config("the sizes are too large", of);
  c.mlp_hidden = static_cast<int64_t>(mlp);
  if (c.time_channels % 2 != 0) bad_config("timestep_guidance_channels must be even", of);
  if (std::accumulate(c.axes.begin(), c.axes.end(), int64_t{0}) != c.head_dim)
    bad_config("the sum of axes_dims_rope must be attention_head_dim, " + std::to_string(c.head_dim), of);
  return c;
}

}  // namespace trainer::flux2
