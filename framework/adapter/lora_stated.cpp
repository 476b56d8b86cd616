#include <adapter/lora_stated.hpp>
#include <base/files.hpp>
#include <base/json_depth.hpp>
#include <nlohmann/json.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>

namespace trainer::adapter {
namespace {

using Ordered = nlohmann::ordered_json;  // of two patterns that fit, peft takes the first

constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::size_t kConfigLimit = 1 << 20;
constexpr std::size_t kMostKeys = 20'000;  // each layer looks at all patterns, each key in order at those before it
constexpr int64_t kMostRank = int64_t{1} << 31;
constexpr double kPeftAlpha = 8;  // peft.LoraConfig's default

using Fail = std::function<void(const std::string&)>;

/// JSON in which no object has a key twice: which of the two counts is not known. Not an object: unreadable.
Ordered parse_once(const std::string& text, const Fail& fail) {
  std::vector<std::set<std::string>> open;
  std::size_t keys = 0;
  const auto watch = [&](int, Ordered::parse_event_t event, Ordered& parsed) {
    if (event == Ordered::parse_event_t::object_start) open.emplace_back();
    if (event == Ordered::parse_event_t::object_end) open.pop_back();
    if (event == Ordered::parse_event_t::key && ++keys > kMostKeys)
      fail("has more than " + std::to_string(kMostKeys) + " keys");
    if (event == Ordered::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second)
      fail("has the key " + quote_name(parsed.get<std::string>()) + " twice");
    return true;
  };
  return Ordered::parse(text, watch, /*allow_exceptions=*/false);
}

bool is_positive(const Ordered& number) {
  return number.is_number() && std::isfinite(number.get<double>()) && number.get<double>() > 0;
}

std::string shown(const Ordered& value) {
  return quote_name(value.dump(-1, ' ', true, Ordered::error_handler_t::replace));
}

/// The ranks that a configuration states, of all layers; empty when it states none.
std::set<int64_t> ranks_of(const Ordered& rank, const Ordered& patterns, const Fail& fail) {
  std::set<int64_t> ranks;
  if (rank.is_null()) return ranks;
  if (!patterns.is_null() && !patterns.is_object()) fail("has a rank_pattern that is no object");
  std::vector<Ordered> all{rank};
  for (const auto& [name, one] : patterns.items()) all.push_back(one);
  for (const Ordered& one : all) {
    if (!one.is_number_integer() || !is_positive(one) || one > kMostRank)
      fail("states the rank " + shown(one) + ", which is no whole number above 0");
    ranks.insert(one.get<int64_t>());
  }
  return ranks;
}

/// As peft asks re.match(r"(.*\.)?(PATTERN)$", layer) of a pattern whose only special character is the dot, which
/// stands for any one: the end of the name, from a dot on.
bool fits(std::string_view pattern, std::string_view layer) {
  if (pattern.size() > layer.size()) return false;
  const std::size_t at = layer.size() - pattern.size();
  if (at > 0 && layer[at - 1] != '.') return false;
  return std::equal(pattern.begin(), pattern.end(), layer.begin() + static_cast<std::ptrdiff_t>(at),
                    [](char wanted, char c) { return wanted == '.' || wanted == c; });
}

bool is_ours(const Metadata& metadata) {
  const auto software = metadata.find("software");
  return software != metadata.end() && software->second == "trainer";
}

}  // namespace

std::string number_text(double number) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

StatedScales::StatedScales(const std::filesystem::path& file, const Metadata& metadata, const std::string& prefix) {
  const std::string where = file.string() + ": ";
  const auto it = metadata.find(kPeftMetadata);
  if (it != metadata.end()) {
    read(it->second, where + "its lora_adapter_metadata", prefix);
  } else if (prefix.starts_with(kPeftPrefix)) {
    const std::filesystem::path config = file.parent_path() / "adapter_config.json";
    if (!std::filesystem::exists(config))
      throw Error(ExitCode::bad_input,
                  where +
                      "it is named as peft saves adapters, whose alpha stands in adapter_config.json; put that file "
                      "beside it",
                  "LORA_CONFIG");
    read(read_file(config, kConfigLimit, "adapter_config.json"), config.string(), "");
  }
}

void StatedScales::read(const std::string& text, const std::string& where, const std::string& prefix) {
  where_ = where;
  const Fail fail = [&](const std::string& what) {
    throw Error(ExitCode::bad_input, where + " " + what, "LORA_CONFIG");
  };
  require_shallow(text, where);
  const Ordered json = parse_once(text, fail);
  if (!json.is_object()) fail("is no JSON object");
  // diffusers puts the component before each key; other programs write peft's keys as they are.
  const auto value = [&](const std::string& key) {
    const auto with = json.find(prefix + key), without = json.find(key);
    if (with != json.end() && without != json.end() && *with != *without)
      fail("states " + quote_name(key) + " and " + quote_name(prefix + key) + ", which differ");
    return with != json.end() ? *with : without != json.end() ? *without : Ordered();
  };
  const auto flag = [&](const std::string& key) {
    const Ordered set = value(key);
    if (!set.is_null() && !set.is_boolean()) fail("has a " + quote_name(key) + " that is neither true nor false");
    return set == true;
  };
  if (flag("use_dora")) fail("says DoRA, which is not read");
  rank_stabilised_ = flag("use_rslora");
  const bool given = json.contains("lora_alpha") || json.contains(prefix + "lora_alpha");
  const Ordered alpha = value("lora_alpha"), patterns = value("alpha_pattern");
  if (given && !is_positive(alpha)) fail("has the lora_alpha " + shown(alpha) + ", which is no number above 0");
  alpha_ = given ? alpha.get<double>() : kPeftAlpha;
  source_ = given ? "stated in peft's configuration" : "peft's default: its configuration states none";
  if (!patterns.is_null() && !patterns.is_object()) fail("has an alpha_pattern that is no object");
  for (const auto& [name, one] : patterns.items()) {
    if (!is_positive(one) || name.find_first_of("^$*+?()[]{}|\\") != std::string::npos)
      fail("has the alpha_pattern " + quote_name(name) +
           ": only names with a number above 0 are read, no regular expressions but for the dot");
    patterns_.emplace_back(name, one.get<double>());
  }
  ranks_ = ranks_of(value("r"), value("rank_pattern"), fail);
}

std::optional<double> StatedScales::pattern(const std::string& layer) const {
  for (const auto& [name, alpha] : patterns_)
    if (fits(name, layer)) return alpha;
  return {};
}

double StatedScales::alpha(const LoraTarget& target, int64_t rank) const {
  if (!alpha_) return static_cast<double>(rank);
  const auto fail = [&](const std::string& what) { throw Error(ExitCode::bad_input, where_ + what, "LORA_CONFIG"); };
  if (!ranks_.empty() && !ranks_.contains(rank))
    fail(" states the rank " + std::to_string(*ranks_.begin()) + ", but the matrices of " + quote_name(target.name) +
         " have the rank " + std::to_string(rank));
  // peft looks for the name in the file, diffusers for the model's names after it has converted the file.
  const bool peft = target.prefix.starts_with(kPeftPrefix);
  const auto own = pattern((peft ? target.prefix.substr(kPeftPrefix.size()) : std::string()) + target.name);
  std::set<double> found;
  if (own) found.insert(*own);
  for (const std::string& layer : target.layers)
    if (const auto alpha = pattern(layer); alpha || !own) found.insert(alpha.value_or(*alpha_));
  if (found.size() > 1) fail(" states several alphas for the one layer " + quote_name(target.name));
  const double alpha = rank_stabilised_ ? *found.begin() * std::sqrt(static_cast<double>(rank)) : *found.begin();
  if (!std::isfinite(alpha)) fail(" states for " + quote_name(target.name) + " an alpha above all numbers");
  return alpha;
}

void StatedScales::require_same(const LoraTarget& target, int64_t rank, double tensor) const {
  constexpr double kRounding = 0.01;  // a tensor of 8 bits of precision
  const double stated = alpha(target, rank);
  if (alpha_ && std::abs(stated - tensor) > kRounding * stated)
    throw Error(ExitCode::bad_input,
                where_ + " states the alpha " + number_text(stated) + " for " + quote_name(target.name) +
                    ", its tensor in the file " + number_text(tensor) +
                    ": programs differ in which they apply; remove the wrong one",
                "LORA_CONFIG");
}

std::optional<double> stated_folded_scale(const std::filesystem::path& file, const Metadata& metadata) {
  const auto it = metadata.find(kFoldedScale);
  if (!is_ours(metadata) || it == metadata.end()) return {};
  double scale = 0;
  const char* end = it->second.data() + it->second.size();
  if (std::from_chars(it->second.data(), end, scale).ptr != end || !std::isfinite(scale) || scale <= 0)
    throw Error(ExitCode::bad_input,
                file.string() + ": its metadata " + kFoldedScale + " is no positive number: " + quote_name(it->second),
                "LORA_CONFIG");
  return scale;
}

std::optional<int64_t> stated_step(const Metadata& metadata) {
  const auto it = metadata.find("step");
  if (!is_ours(metadata) || it == metadata.end()) return {};
  int64_t step = 0;
  const char* end = it->second.data() + it->second.size();
  if (std::from_chars(it->second.data(), end, step).ptr != end || step < 0) return {};
  return step;
}

}  // namespace trainer::adapter
