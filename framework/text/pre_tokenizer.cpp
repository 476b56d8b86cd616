#include <nlohmann/json.hpp>
#include <text/bad_file.hpp>
#include <text/pre_tokenizer.hpp>
#include <text/utf8.hpp>

#include <algorithm>
#include <map>
#include <utility>

namespace trainer::text {
namespace {

using Json = nlohmann::json;

// What ByteLevel with use_regex splits by (GPT-2).
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string type_of(const Json& description, const std::string& where) {
  const auto type = description.is_object() ? description.find("type") : description.end();
  if (!description.is_object() || type == description.end() || !type->is_string())
    fail("TOK_FIELD", where, "an object with a \"type\" is needed");
  return type->get<std::string>();
}

bool flag(const Json& description, const char* key, bool missing, const std::string& where) {
  const auto value = description.find(key);
  if (value == description.end()) return missing;
  if (!value->is_boolean()) fail("TOK_FIELD", where + "." + key, "must be true or false");
  return value->get<bool>();
}

const Json& list(const Json& description, const char* key, const std::string& where) {
  const auto value = description.find(key);
  if (value == description.end() || !value->is_array()) fail("TOK_FIELD", where + "." + key, "must be a list");
  return *value;
}

Regex pattern_of(const Json& description, const std::string& where) {
  const auto pattern = description.find("pattern");
  if (pattern != description.end() && pattern->is_object() && pattern->size() == 1 && pattern->begin()->is_string()) {
    const auto& text = pattern->begin()->get_ref<const std::string&>();
    try {
      if (pattern->contains("Regex")) return Regex::compile(text);
      if (pattern->contains("String")) return Regex::literal(text);
    } catch (const Error& error) {
      throw error.context(where + ".pattern");
    }
  }
  fail("TOK_FIELD", where + ".pattern", "must be {\"Regex\": ...} or {\"String\": ...}");
}

/// Character of each byte: printable Latin-1 stands for itself, the others follow from U+0100 on.
std::array<int32_t, 256> byte_characters() {
  std::array<int32_t, 256> characters{};
  int32_t next = 256;
  for (int32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    characters[static_cast<std::size_t>(byte)] = printable ? byte : next++;
  }
  return characters;
}

}  // namespace

Normalizer::Normalizer(const Json& description, const std::string& where) {
  if (!description.is_null()) add(description, where);
}

void Normalizer::add(const Json& description, const std::string& where) {
  static const std::map<std::string, NormalForm> kForms = {
      {"NFC", NormalForm::nfc}, {"NFD", NormalForm::nfd}, {"NFKC", NormalForm::nfkc}, {"NFKD", NormalForm::nfkd}};
  const std::string type = type_of(description, where);
  if (type == "Sequence") {
    std::size_t index = 0;
    for (const Json& part : list(description, "normalizers", where))
      add(part, where + ".normalizers[" + std::to_string(index++) + "]");
    return;
  }
  const auto form = kForms.find(type);
  if (form == kForms.end())
    fail("TOK_UNSUPPORTED", where,
         "normalizer " + in_quotes(type) + " is not supported; known: NFC, NFD, NFKC, NFKD, Sequence");
  forms_.push_back(form->second);
}

std::string Normalizer::apply(std::string_view text) const {
  std::string result(text);
  for (const NormalForm form : forms_) result = normalise(result, form);
  return result;
}

PreTokenizer::PreTokenizer(const Json& description, const std::string& where) {
  if (!description.is_null()) add(description, where);
  const auto byte_levels =
      std::count_if(steps_.begin(), steps_.end(), [](const auto& s) { return std::holds_alternative<ByteLevel>(s); });
  if (byte_levels != 1)
    fail("TOK_UNSUPPORTED", where,
         std::to_string(byte_levels) + " ByteLevel steps; only byte-level BPE tokenizers, with one, can be used");
}

void PreTokenizer::add(const Json& description, const std::string& where) {
  static const std::map<std::string, Behaviour> kBehaviours = {{"Removed", Behaviour::removed},
                                                               {"Isolated", Behaviour::isolated},
                                                               {"MergedWithPrevious", Behaviour::merged_with_previous},
                                                               {"MergedWithNext", Behaviour::merged_with_next},
                                                               {"Contiguous", Behaviour::contiguous}};
  const std::string type = type_of(description, where);
  if (type == "Sequence") {
    std::size_t index = 0;
    for (const Json& part : list(description, "pretokenizers", where))
      add(part, where + ".pretokenizers[" + std::to_string(index++) + "]");
  } else if (type == "ByteLevel") {
    std::optional<Regex> regex;
    if (flag(description, "use_regex", true, where)) regex = Regex::compile(kByteLevelPattern);
    steps_.emplace_back(ByteLevel{flag(description, "add_prefix_space", true, where), std::move(regex)});
  } else if (type == "Split") {
    const auto value = description.find("behavior");
    const auto behaviour = value != description.end() && value->is_string()
                               ? kBehaviours.find(value->get<std::string>())
                               : kBehaviours.end();
    if (behaviour == kBehaviours.end())
      fail("TOK_FIELD", where + ".behavior",
           "must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
    steps_.emplace_back(
        Split{pattern_of(description, where), behaviour->second, flag(description, "invert", false, where)});
  } else {
    fail("TOK_UNSUPPORTED", where,
         "pre-tokenizer " + in_quotes(type) + " is not supported; known: Sequence, Split, ByteLevel");
  }
}

std::vector<Span> PreTokenizer::arrange(std::vector<Span> parts, Behaviour behaviour) {
  if (behaviour == Behaviour::isolated) return parts;
  std::vector<Span> out;
  const bool backwards = behaviour == Behaviour::merged_with_next;
  if (backwards) std::reverse(parts.begin(), parts.end());
  bool previous = false;
  for (const Span& part : parts) {
    bool join = false;
    if (behaviour == Behaviour::removed) {
      if (part.is_match) continue;
    } else {
      join = behaviour == Behaviour::contiguous ? part.is_match == previous : part.is_match && !previous;
    }
    previous = part.is_match;
    if (!join || out.empty())
      out.push_back(part);
    else if (backwards)
      out.back().begin = part.begin;
    else
      out.back().end = part.end;
  }
  if (backwards) std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string> PreTokenizer::apply(std::string_view text) const {
  std::vector<std::string> pieces{std::string(text)};
  for (const auto& step : steps_) {
    std::vector<std::string> next;
    const auto push = [&](const std::string& piece, const std::vector<Span>& parts, bool bytes) {
      for (const Span& part : parts) {
        const std::string_view view = std::string_view(piece).substr(part.begin, part.end - part.begin);
        if (!view.empty()) next.push_back(bytes ? to_byte_alphabet(view) : std::string(view));
      }
    };
    for (std::string& piece : pieces) {
      if (piece.empty()) continue;
      if (const auto* split = std::get_if<Split>(&step)) {
        std::vector<Span> parts = split->regex.split(piece);
        for (Span& part : parts) part.is_match = part.is_match != split->invert;
        push(piece, arrange(std::move(parts), split->behaviour), false);
      } else {
        const auto& level = std::get<ByteLevel>(step);
        if (level.add_prefix_space && piece.front() != ' ') piece.insert(0, 1, ' ');
        push(piece, level.regex ? level.regex->split(piece) : std::vector<Span>{{0, piece.size(), false}}, true);
      }
    }
    pieces = std::move(next);
  }
  return pieces;
}

std::string to_byte_alphabet(std::string_view bytes) {
  static const std::array<int32_t, 256> kCharacters = byte_characters();
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char byte : bytes) append_character(out, kCharacters[static_cast<unsigned char>(byte)]);
  return out;
}

std::string from_byte_alphabet(std::string_view text) {
  static const std::map<int32_t, char> kBytes = [] {
    std::map<int32_t, char> bytes;
    const std::array<int32_t, 256> characters = byte_characters();
    for (std::size_t byte = 0; byte < characters.size(); ++byte) bytes[characters[byte]] = static_cast<char>(byte);
    return bytes;
  }();
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto found = kBytes.find(next_character(text, at));
    if (found == kBytes.end()) return std::string(text);
    out.push_back(found->second);
  }
  return out;
}

}  // namespace trainer::text
