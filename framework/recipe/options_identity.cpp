#include <base/hash.hpp>
#include <recipe/options_identity.hpp>
#include <recipe/write.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>

namespace trainer::recipe {
namespace {

/// The first checkpoints and caches hash these whatever their values are, so they always count. This list never grows:
/// an option that is not in it counts where it differs from its default.
constexpr std::array<std::string_view, 9> kAlwaysCounted{
    "exclude", "fast_accumulation", "granularity",   "keep", "layers", "max_tokens",
    "tiling",  "micro_batch",       "system_message"};

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
    if (std::find(kAlwaysCounted.begin(), kAlwaysCounted.end(), spec.key) == kAlwaysCounted.end() &&
        has_default(spec, options.values()))
      counted.erase(spec.key);
  FieldHash hash;
  add_value(hash, Value{counted});
  return hash.hex();
}

}  // namespace trainer::recipe
