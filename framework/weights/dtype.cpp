#include <weights/dtype.hpp>

#include <array>

namespace trainer::weights {
namespace {

struct Row {
  std::string_view name;
  unsigned bits;
};

/// Indexed by Dtype.
constexpr std::array<Row, 22> kRows{{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};
static_assert(kRows.size() == static_cast<std::size_t>(Dtype::u64) + 1);

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kRows.at(static_cast<std::size_t>(dtype)).name; }

unsigned dtype_bits(Dtype dtype) { return kRows.at(static_cast<std::size_t>(dtype)).bits; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

std::string known_dtypes() {
  std::string text;
  for (const Row& row : kRows) text += (text.empty() ? "" : ", ") + std::string(row.name);
  return text;
}

}  // namespace trainer::weights
