#include "config.hpp"

#include <trainer/sdk/error.hpp>

#include <cmath>
#include <nlohmann/json.hpp>

namespace trainer::flux2_vae {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxWidth = 1 << 16, kMaxLevels = 8, kMaxLayers = 64;

/// A value for a message, in ASCII, shortened.
std::string shown(const Json& value) {
  constexpr std::size_t kShown = 120;
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

/// Reads typed keys of one JSON object; a missing key or null leaves the value as it is.
class Reader {
 public:
  Reader(const Json& object, const std::string& where) : object_(object), where_(where) {}

  void integer(const char* key, int64_t low, int64_t high, int64_t& value) const {
    if (const Json* found = find(key)) value = in_range(key, *found, low, high);
  }
  void boolean(const char* key, bool& value) const {
    const Json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_boolean()) fail(key, "must be true or false");
    value = found->get<bool>();
  }
  void positive(const char* key, double& value) const {
    const Json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_number() || !std::isfinite(found->get<double>()) || found->get<double>() <= 0) {
      fail(key, "must be a number above 0");
    }
    value = found->get<double>();
  }
  void widths(const char* key, std::vector<int64_t>& value) const {
    const Json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_array() || found->empty() || found->size() > kMaxLevels)
      fail(key, "must be a list of 1 to 8 integers");
    value.clear();
    for (const Json& item : *found) value.push_back(in_range(key, item, 1, kMaxWidth));
  }
  /// A number, or a list of equal numbers (diffusers writes square sizes both ways).
  void square(const char* key, int64_t low, int64_t high, int64_t& value) const {
    const Json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_array()) return integer(key, low, high, value);
    if (found->size() != 2 || (*found)[0] != (*found)[1]) fail(key, "must be one number or two equal ones");
    value = in_range(key, (*found)[0], low, high);
  }
  /// Only one value is computed here, e.g. the activation.
  void only(const char* key, const Json& allowed) const {
    const Json* found = find(key);
    if (found != nullptr && *found != allowed)
      fail(key, "is " + shown(*found) + ", only " + allowed.dump() + " is supported");
  }
  void only_items(const char* key, const char* allowed) const {
    const Json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_array()) fail(key, "must be a list of block types");
    for (const Json& item : *found) {
      if (item != allowed) fail(key, "holds " + shown(item) + ", only \"" + allowed + "\" is supported");
    }
  }

 private:
  const Json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  int64_t in_range(const char* key, const Json& value, int64_t low, int64_t high) const {
    const bool fits = value.is_number_integer() && value >= low && value <= high;
    if (!fits) fail(key, "must be an integer from " + std::to_string(low) + " to " + std::to_string(high));
    return value.get<int64_t>();
  }
  [[noreturn]] void fail(const std::string& key, const std::string& problem) const {
    throw Error(ExitCode::bad_input, where_ + ": config.json: \"" + key + "\" " + problem, "MODEL_CONFIG");
  }

  const Json& object_;
  const std::string& where_;
};

Json parse_object(const std::string& json, const std::string& where) {
  try {
    Json object = Json::parse(json);
    if (object.is_object()) return object;
    throw Error(ExitCode::bad_input, where + ": config.json holds no JSON object", "MODEL_CONFIG");
  } catch (const Json::exception& error) {
    throw Error(ExitCode::bad_input, where + ": config.json: " + error.what(), "MODEL_CONFIG");
  }
}

}  // namespace

VaeConfig parse_config(const std::string& json, const VaeConfig& base, const std::string& where) {
  const Json object = parse_object(json, where);
  const Reader read(object, where);
  read.only("_class_name", "AutoencoderKLFlux2");
  read.only("act_fn", "silu");
  read.only("in_channels", 3);
  read.only("out_channels", 3);
  read.only_items("down_block_types", "DownEncoderBlock2D");
  read.only_items("up_block_types", "UpDecoderBlock2D");
  VaeConfig config = base;
  read.widths("block_out_channels", config.encoder_channels);
  read.widths("decoder_block_out_channels", config.decoder_channels);
  read.integer("layers_per_block", 1, kMaxLayers, config.layers_per_block);
  read.integer("latent_channels", 1, kMaxWidth, config.latent_channels);
  read.integer("norm_num_groups", 1, kMaxWidth, config.norm_groups);
  read.square("sample_size", 1, kMaxWidth, config.sample_size);
  read.square("patch_size", 1, 64, config.patch);
  read.positive("batch_norm_eps", config.batch_norm_eps);
  read.boolean("use_quant_conv", config.quant_conv);
  read.boolean("use_post_quant_conv", config.post_quant_conv);
  read.boolean("mid_block_add_attention", config.mid_attention);
  return config;
}

void check_config(const VaeConfig& config, const std::string& where) {
  const auto fail = [&](const std::string& problem) {
    throw Error(ExitCode::bad_input, where + ": " + problem, "MODEL_CONFIG");
  };
  if (config.encoder_channels.size() != config.decoder_channels.size()) {
    fail("the encoder has " + std::to_string(config.encoder_channels.size()) + " levels, the decoder " +
         std::to_string(config.decoder_channels.size()));
  }
  for (const auto* channels : {&config.encoder_channels, &config.decoder_channels}) {
    for (const int64_t width : *channels) {
      if (width % config.norm_groups == 0) continue;
      fail("norm_num_groups " + std::to_string(config.norm_groups) + " does not divide a width of " +
           std::to_string(width) + " channels; put the model's config.json beside the file if it is missing");
    }
  }
}

}  // namespace trainer::flux2_vae
