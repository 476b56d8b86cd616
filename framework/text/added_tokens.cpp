#include <nlohmann/json.hpp>
#include <text/added_tokens.hpp>
#include <text/bad_file.hpp>
#include <text/utf8.hpp>

#include <algorithm>

namespace trainer::text {
namespace {

using Json = nlohmann::json;

AddedToken read_token(const Json& entry, const std::string& where) {
  if (!entry.is_object()) fail("TOK_FIELD", where, "must be an object");
  AddedToken token;
  const auto content = entry.find("content");
  if (content == entry.end() || !content->is_string() || content->get_ref<const std::string&>().empty())
    fail("TOK_FIELD", where, "\"content\" must be a text that is not empty");
  token.content = content->get<std::string>();
  const auto id = entry.find("id");
  if (id == entry.end() || !id->is_number_unsigned() || id->get<uint64_t>() >= kMaxVocabulary)
    fail("TOK_FIELD", where,
         "\"id\" of " + in_quotes(token.content) + " must be a whole number from 0 to " +
             std::to_string(kMaxVocabulary - 1));
  token.id = id->get<int32_t>();
  const auto flag = [&](const char* key, bool missing) {
    const auto value = entry.find(key);
    if (value == entry.end()) return missing;
    if (!value->is_boolean()) fail("TOK_FIELD", where, std::string("\"") + key + "\" must be true or false");
    return value->get<bool>();
  };
  token.single_word = flag("single_word", false);
  token.lstrip = flag("lstrip", false);
  token.rstrip = flag("rstrip", false);
  token.special = flag("special", false);
  token.normalized = flag("normalized", !token.special);
  return token;
}

/// Start of the white space that ends at `end`.
std::size_t spaces_before(std::string_view text, std::size_t end) {
  while (end > 0 && is_space(previous_character(text, end))) {
    --end;
    while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  }
  return end;
}

/// End of the white space that starts at `at`.
std::size_t spaces_behind(std::string_view text, std::size_t at) {
  for (std::size_t next = at; next < text.size() && is_space(next_character(text, next));) at = next;
  return at;
}

bool touches_word(std::string_view text, std::size_t begin, std::size_t end) {
  const bool before = begin > 0 && is_word(previous_character(text, begin));
  return before || (end < text.size() && is_word(next_character(text, end)));
}

}  // namespace

AddedTokens::AddedTokens(const Json& list, const Vocabulary& vocabulary, const Normalizer& normalizer,
                         const std::string& name) {
  if (list.is_null()) return;
  if (!list.is_array()) fail("TOK_FIELD", name, "\"added_tokens\" must be a list");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string where = name + ": added_tokens[" + std::to_string(i) + "]";
    AddedToken token = read_token(list[i], where);
    check(token, vocabulary, where);
    if (!vocabulary.id(token.content)) ++beyond_vocabulary_;
    ids_.emplace(token.content, token.id);
    tokens_.emplace(token.id, std::move(token));
  }
  for (const bool special : {true, false})  // two tokens may share a normalised form: special ones win
    for (const auto& [id, token] : tokens_)
      if (token.special == special)
        token.normalized ? normalised_.add(normalizer.apply(token.content), id) : raw_.add(token.content, id);
}

void AddedTokens::check(const AddedToken& token, const Vocabulary& vocabulary, const std::string& where) const {
  const std::string number = std::to_string(token.id);
  if (ids_.contains(token.content)) fail("TOK_DUPLICATE", where, in_quotes(token.content) + " appears twice");
  if (const AddedToken* other = find(token.id))
    fail("TOK_DUPLICATE", where,
         "id " + number + " is given to both " + in_quotes(other->content) + " and " + in_quotes(token.content));
  const std::optional<int32_t> known = vocabulary.id(token.content);
  if (known && *known != token.id)
    fail("TOK_INCONSISTENT", where,
         in_quotes(token.content) + " has id " + number + " here and " + std::to_string(*known) + " in model.vocab");
  const std::optional<std::string_view> owner = vocabulary.token(token.id);
  if (owner && *owner != token.content)
    fail("TOK_INCONSISTENT", where,
         "id " + number + " of " + in_quotes(token.content) + " belongs to " + in_quotes(*owner) + " in model.vocab");
}

void AddedTokens::Matcher::add(const std::string& content, int32_t id) {
  if (content.empty() || !ids.emplace(content, id).second) return;
  std::vector<std::size_t>& known = lengths[static_cast<unsigned char>(content.front())];
  const auto place = std::lower_bound(known.begin(), known.end(), content.size(), std::greater<>());
  if (place == known.end() || *place != content.size()) known.insert(place, content.size());
}

std::optional<std::pair<std::size_t, int32_t>> AddedTokens::Matcher::at(std::string_view text,
                                                                        std::size_t offset) const {
  for (const std::size_t length : lengths[static_cast<unsigned char>(text[offset])]) {
    if (length > text.size() - offset) continue;
    const auto found = ids.find(text.substr(offset, length));
    if (found != ids.end()) return std::pair{length, found->second};
  }
  return std::nullopt;
}

void AddedTokens::cut(std::string_view text, const Matcher& matcher,
                      const std::function<void(std::string_view)>& on_text,
                      const std::function<void(int32_t)>& on_token) const {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto match = matcher.at(text, at);
    if (!match) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_.at(match->second);
    std::size_t begin = at;
    std::size_t end = at + match->first;
    at = end;
    if (token.single_word && touches_word(text, begin, end)) continue;
    // White space that the token before took is gone.
    if (token.lstrip) begin = std::max(spaces_before(text, begin), done);
    if (token.rstrip) end = spaces_behind(text, end);
    if (done < begin) on_text(text.substr(done, begin - done));
    on_token(token.id);
    done = end;
  }
  if (done < text.size()) on_text(text.substr(done));
}

void AddedTokens::split(std::string_view text, const Normalizer& normalizer,
                        const std::function<void(std::string_view)>& on_text,
                        const std::function<void(int32_t)>& on_token) const {
  const auto normalise_and_cut = [&](std::string_view part) {
    cut(normalizer.apply(part), normalised_, on_text, on_token);
  };
  cut(text, raw_, normalise_and_cut, on_token);
}

std::optional<int32_t> AddedTokens::id(std::string_view content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const AddedToken* AddedTokens::find(int64_t id) const {
  if (id < 0 || id >= static_cast<int64_t>(kMaxVocabulary)) return nullptr;
  const auto found = tokens_.find(static_cast<int32_t>(id));
  return found == tokens_.end() ? nullptr : &found->second;
}

}  // namespace trainer::text
