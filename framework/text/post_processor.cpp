#include <nlohmann/json.hpp>
#include <text/bad_file.hpp>
#include <text/post_processor.hpp>
#include <text/utf8.hpp>
#include <text/vocabulary.hpp>

namespace trainer::text {
namespace {

using Json = nlohmann::json;

const Json& member(const Json& object, const char* key, Json::value_t type, const std::string& where) {
  const auto value = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || value == object.end() || value->type() != type)
    fail("TOK_FIELD", where, std::string("\"") + key + "\" is missing or of the wrong kind");
  return *value;
}

std::vector<int64_t> ids_of(const Json& special_tokens, const std::string& token,
                            const std::function<bool(int64_t)>& known, const std::string& where) {
  const Json& entry = member(special_tokens, token.c_str(), Json::value_t::object, where + ".special_tokens");
  std::vector<int64_t> ids;
  for (const Json& id : member(entry, "ids", Json::value_t::array, where + ".special_tokens")) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxVocabulary)
      fail("TOK_FIELD", where + ".special_tokens",
           "the ids of " + in_quotes(token) + " must be whole numbers below 2000000");
    if (!known(id.get<int64_t>()))
      fail("TOK_INCONSISTENT", where + ".special_tokens",
           "id " + id.dump() + " of " + in_quotes(token) + " is neither in model.vocab nor among added_tokens");
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

}  // namespace

PostProcessor::PostProcessor(const Json& description, const std::function<bool(int64_t)>& known,
                             const std::string& where) {
  if (!description.is_null()) add(description, known, where);
}

void PostProcessor::add(const Json& description, const std::function<bool(int64_t)>& known, const std::string& where) {
  const std::string type = member(description, "type", Json::value_t::string, where).get<std::string>();
  if (type == "ByteLevel") return;  // it moves offsets only
  if (type == "Sequence") {
    std::size_t index = 0;
    for (const Json& part : member(description, "processors", Json::value_t::array, where))
      add(part, known, where + ".processors[" + std::to_string(index++) + "]");
    return;
  }
  if (type != "TemplateProcessing")
    fail("TOK_UNSUPPORTED", where,
         "post-processor " + in_quotes(type) + " is not supported; known: ByteLevel, TemplateProcessing, Sequence");
  Template result;
  std::size_t texts = 0;
  for (const Json& part : member(description, "single", Json::value_t::array, where)) {
    if (part.is_object() && part.contains("Sequence")) {
      ++texts;
      continue;
    }
    const Json& special = member(part, "SpecialToken", Json::value_t::object, where + ".single");
    const std::string token = member(special, "id", Json::value_t::string, where + ".single").get<std::string>();
    std::vector<int64_t>& side = texts == 0 ? result.before : result.after;
    const Json& tokens = member(description, "special_tokens", Json::value_t::object, where);
    for (const int64_t id : ids_of(tokens, token, known, where)) side.push_back(id);
  }
  if (texts != 1) fail("TOK_FIELD", where + ".single", "must hold the text exactly once");
  templates_.push_back(std::move(result));
}

std::vector<int64_t> PostProcessor::apply(std::vector<int64_t> ids) const {
  for (const Template& part : templates_) {
    ids.insert(ids.begin(), part.before.begin(), part.before.end());
    ids.insert(ids.end(), part.after.begin(), part.after.end());
  }
  return ids;
}

}  // namespace trainer::text
