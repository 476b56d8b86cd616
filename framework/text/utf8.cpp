#include <utf8proc.h>
#include <base/printable.hpp>
#include <base/utf8.hpp>
#include <text/utf8.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

namespace trainer::text {
namespace {

const utf8proc_uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_continuation(std::string_view bytes, std::size_t at, unsigned low = 0x80, unsigned high = 0xBF) {
  return at < bytes.size() && static_cast<unsigned char>(bytes[at]) >= low &&
         static_cast<unsigned char>(bytes[at]) <= high;
}

/// Bytes of the longest start of a well-formed sequence at `at` (table 3-7 of the Unicode standard), at least 1.
std::size_t ill_formed_length(std::string_view bytes, std::size_t at) {
  const auto lead = static_cast<unsigned char>(bytes[at]);
  if (lead < 0xC2 || lead > 0xF4) return 1;
  unsigned low = 0x80;
  unsigned high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (!is_continuation(bytes, at + 1, low, high)) return 1;
  std::size_t count = 2;
  while (count < length && is_continuation(bytes, at + count)) ++count;
  return count;
}

/// Puts runs of combining marks into canonical order, which changes no normal form. utf8proc would do it too, in
/// quadratic time: a megabyte of marks would take hours.
std::string order_marks(std::string_view text) {
  struct Mark {
    utf8proc_propval_t combining_class;
    std::string_view bytes;
  };
  std::string out;
  out.reserve(text.size());
  std::vector<Mark> run;
  const auto flush = [&] {
    std::stable_sort(run.begin(), run.end(),
                     [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
    for (const Mark& mark : run) out.append(mark.bytes);
    run.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const utf8proc_property_t* property = utf8proc_get_property(next_character(text, at));
    const std::string_view bytes = text.substr(start, at - start);
    if (property->combining_class != 0) {
      run.push_back({property->combining_class, bytes});
    } else {
      flush();
      out.append(bytes);
    }
  }
  flush();
  return out;
}

}  // namespace

int32_t next_character(std::string_view text, std::size_t& offset) {
  utf8proc_int32_t character = -1;
  const utf8proc_ssize_t length =
      utf8proc_iterate(bytes_of(text.substr(offset)), static_cast<utf8proc_ssize_t>(text.size() - offset), &character);
  offset += length > 0 ? static_cast<std::size_t>(length) : 1;
  return character;
}

int32_t previous_character(std::string_view text, std::size_t end) {
  std::size_t start = end - 1;
  while (start > 0 && is_continuation(text, start)) --start;
  return next_character(text.substr(0, end), start);
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  for (std::size_t bad; (bad = invalid_utf8(bytes)) != std::string_view::npos;) {
    out.append(bytes.substr(0, bad)).append("\xEF\xBF\xBD");
    bytes.remove_prefix(bad + ill_formed_length(bytes, bad));
  }
  return out.append(bytes);
}

std::string in_quotes(std::string_view text) {
  std::size_t end = std::min<std::size_t>(text.size(), 80);
  while (end < text.size() && is_continuation(text, end)) ++end;
  return "\"" + printable(replace_invalid_utf8(text.substr(0, end))) + (end < text.size() ? "...\"" : "\"");
}

void append_character(std::string& text, int32_t character) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t length = utf8proc_encode_char(character, bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

bool is_space(int32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(int32_t c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Join controls, and the symbols that Unicode calls alphabetic: circled, squared and negative letters.
      return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
             (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  }
}

std::string normalise(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);  // every form leaves ASCII alone
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::nfc || form == NormalForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
  const std::string ordered = order_marks(text);
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(bytes_of(ordered), static_cast<utf8proc_ssize_t>(ordered.size()),
                                               &result, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0)
    throw Error(ExitCode::bad_input, std::string("cannot normalise text: ") + utf8proc_errmsg(length), "TOK_TEXT");
  return {reinterpret_cast<const char*>(result), static_cast<std::size_t>(length)};
}

}  // namespace trainer::text
