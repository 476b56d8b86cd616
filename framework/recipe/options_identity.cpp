#include <base/hash.hpp>
#include <recipe/options_identity.hpp>
#include <recipe/write.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <utility>

namespace trainer::recipe {
namespace {

struct Counted {
  std::string_view kind, name, key;
};

/// The first checkpoints hash these whatever their values are, so they always count. This list never grows: an option
/// that is not in it counts where it differs from its default.
constexpr std::array<Counted, 14> kAlwaysCounted{{{"text_encoder", "mistral", "max_tokens"},
                                                  {"text_encoder", "mistral", "layers"},
                                                  {"text_encoder", "mistral", "system_message"},
                                                  {"text_encoder", "mistral", "micro_batch"},
                                                  {"text_encoder", "qwen3", "max_tokens"},
                                                  {"text_encoder", "qwen3", "layers"},
                                                  {"text_encoder", "qwen3", "micro_batch"},
                                                  {"autoencoder", "flux2_vae", "tiling"},
                                                  {"memory", "fp8_weight_only", "granularity"},
                                                  {"memory", "fp8_weight_only", "keep"},
                                                  {"memory", "fp8_weight_only", "exclude"},
                                                  {"memory", "fp8_w8a8", "exclude"},
                                                  {"memory", "fp8_w8a8", "fast_accumulation"},
                                                  {"memory", "int8_w8a8", "exclude"}}};

bool always_counts(const ComponentSchema& schema, const std::string& key) {
  return std::any_of(kAlwaysCounted.begin(), kAlwaysCounted.end(), [&](const Counted& one) {
    return one.kind == schema.kind && one.name == schema.name && one.key == key;
  });
}

void add_value(FieldHash& hash, const Value& value) {
  hash.add(static_cast<int64_t>(value.data.index()));
  std::visit(
      [&](const auto& typed) {
        using Type = std::decay_t<decltype(typed)>;
        if constexpr (std::is_same_v<Type, std::monostate>) {
        } else if constexpr (std::is_same_v<Type, std::string>) {
          hash.add(typed);
        } else if constexpr (std::is_same_v<Type, double>) {
          hash.add(std::bit_cast<int64_t>(typed));
        } else if constexpr (std::is_same_v<Type, Array>) {
          hash.add(static_cast<int64_t>(typed.size()));
          for (const Value& item : typed) add_value(hash, item);
        } else if constexpr (std::is_same_v<Type, Table>) {
          hash.add(static_cast<int64_t>(typed.size()));
          for (const auto& [name, item] : typed) hash.add(name), add_value(hash, item);
        } else {
          hash.add(static_cast<int64_t>(typed));
        }
      },
      value.data);
}

bool has_default(const OptionSpec& spec, const Table& values) {
  const auto value = values.find(spec.key), other = values.find(spec.same_as);
  if (spec.required || value == values.end()) return false;
  return equal(value->second, other == values.end() ? spec.fallback : other->second);
}

}  // namespace

std::string options_identity(const Options& options, const ComponentSchema& schema) {
  Table counted = options.values();
  for (const OptionSpec& spec : schema.options)
    if (!always_counts(schema, spec.key) && has_default(spec, options.values())) counted.erase(spec.key);
  return identity_of_all({options.section(), std::move(counted)});
}

std::string identity_of_all(const Options& options) {
  FieldHash hash;
  add_value(hash, Value{options.values()});
  return hash.hex();
}

}  // namespace trainer::recipe
