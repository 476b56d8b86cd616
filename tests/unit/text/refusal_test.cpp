// Damaged, hostile and unsuitable tokenizer.json files, and texts that are no text: one clear error each.
#include "text_files.hpp"

#include <trainer/sdk/error.hpp>

#include <functional>

namespace trainer::text {
namespace {

using Json = nlohmann::json;

class Refusal : public TokenizerFiles {
 protected:
  /// A tokenizer with the byte alphabet, two merges and one added token.
  static Json small() {
    Json vocab = Json::object();
    int id = 0;
    for (int c = '!'; c <= '~'; ++c) vocab[std::string(1, static_cast<char>(c))] = id++;
    vocab["Ġ"] = id++;
    vocab["ab"] = id++;
    vocab["abc"] = id++;
    return {{"added_tokens", {{{"id", id}, {"content", "<s>"}, {"special", true}, {"normalized", false}}}},
            {"normalizer", nullptr},
            {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
            {"post_processor", nullptr},
            {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array({Json::array({"a", "b"}), "ab c"})}}}};
  }

  static void expect_error(const std::string& message, const std::string& code, const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "no error, expected: " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
      EXPECT_EQ(error.what(), message);
      EXPECT_EQ(error.code(), code) << message;
    }
  }
  /// `message` follows the name of the file.
  void refused(const std::string& content, const std::string& message, const std::string& code) const {
    expect_error(file().string() + message, code, [&] { (void)load_content(content); });
  }
  void refused(const Json& content, const std::string& message, const std::string& code) const {
    refused(content.dump(), message, code);
  }
  /// The small tokenizer with the value at `pointer` changed.
  void refused_with(const char* pointer, const Json& value, const std::string& message, const std::string& code) const {
    Json content = small();
    content[Json::json_pointer(pointer)] = value;
    refused(content, message, code);
  }
};

TEST_F(Refusal, TheSmallTokenizerItselfIsFine) {
  const Tokenizer tokenizer = load(small());
  EXPECT_EQ(tokenizer.encode("abc<s>"), (std::vector<int64_t>{96, 97}));
  EXPECT_EQ(tokenizer.vocabulary_size(), 98U);
}

TEST_F(Refusal, FilesThatAreNotThere) {
  try {
    (void)Tokenizer::load(file());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::not_found);
    EXPECT_EQ(error.what(), "cannot open tokenizer " + file().string() + ": No such file or directory");
  }
}

TEST_F(Refusal, DamagedJson) {
  refused(std::string("{\"model\":\n  {\"type\": \"BPE\",}}"),
          ":2:18: not valid JSON: syntax error while parsing object key - unexpected '}'; expected string literal; "
          "download the file again",
          "TOK_JSON");
  refused(std::string(),
          ":1:1: not valid JSON: syntax error while parsing value - unexpected end of input; expected '[', "
          "'{', or a literal; download the file again",
          "TOK_JSON");
  refused(std::string("{\"a\": \"\xC3\x28\"}"),
          ":1:9: not valid JSON: syntax error while parsing value - invalid string: ill-formed UTF-8 byte; last read: "
          "'\"\xC3('; download the file again",
          "TOK_JSON");
  refused(std::string("[1]"), ": the file must hold one JSON object", "TOK_FIELD");
  const std::string whole = small().dump();
  for (std::size_t size = 0; size < whole.size(); size += 7)  // cut anywhere: an error, never a crash
    EXPECT_THROW((void)load_content(whole.substr(0, size)), Error) << size;
}

TEST_F(Refusal, LimitsOfTheFile) {
  refused("{\"a\": " + std::string(32, '[') + std::string(32, ']') + "}", ": nested deeper than 32 levels",
          "TOK_LIMIT");
  refused("{\"a\": " + std::string(1'000'000, '['), ": nested deeper than 32 levels", "TOK_LIMIT");
  refused(
      std::string(1, '{') + "\"a\": [0" +
          [] {
            std::string zeros;
            for (int i = 0; i < 2'000'000; ++i) zeros += ",0";
            return zeros;
          }() +
          "]}",
      ": more than 2000000 values outside vocab and merges", "TOK_LIMIT");
  expect_error("tokenizer " + file().string() + " is larger than 67108864 bytes", "",
               [&] { (void)load_content(std::string((std::size_t{64} << 20) + 1, ' ')); });
  refused_with("/model/vocab/ab", 2'000'000, ": model.vocab: id 2000000 of \"ab\" is out of range, at most 1999999",
               "TOK_LIMIT");
}

TEST_F(Refusal, RepeatedKeysTokensAndIds) {
  refused(std::string("{\"version\": 1, \"version\": 2}"), ": key \"version\" appears twice", "TOK_DUPLICATE");
  refused(std::string("{\"model\": {\"vocab\": {}, \"vocab\": {}}}"), ": key \"model.vocab\" appears twice",
          "TOK_DUPLICATE");
  refused(std::string("{\"model\": {\"vocab\": {\"a\": 0, \"a\": 1}}}"), ": model.vocab: token \"a\" appears twice",
          "TOK_DUPLICATE");
  refused(std::string("{\"model\": {\"vocab\": {\"a\": 0, \"b\": 0}}}"),
          ": model.vocab: id 0 is given to both \"a\" and \"b\"", "TOK_DUPLICATE");
  refused_with("/model/merges", Json::array({Json::array({"a", "b"}), "a b"}),
               ": model.merges[1]: the merge of \"a\" and \"b\" appears twice", "TOK_DUPLICATE");
  const Json token = small()["added_tokens"][0];
  Json other = token;
  refused_with("/added_tokens/1", token, ": added_tokens[1]: \"<s>\" appears twice", "TOK_DUPLICATE");
  other["content"] = "</s>";
  refused_with("/added_tokens/1", other, ": added_tokens[1]: id 97 is given to both \"<s>\" and \"</s>\"",
               "TOK_DUPLICATE");
}

TEST_F(Refusal, VocabularyAndMergesOfTheWrongKind) {
  refused_with("/model/vocab/ab", -1, ": model.vocab: the id of \"ab\" is negative: -1", "TOK_FIELD");
  for (const Json& value : {Json(1.5), Json("1"), Json(nullptr)})
    refused_with("/model/vocab/ab", value,
                 ": model.vocab: \"ab\" has another value where its id (a whole number) belongs", "TOK_FIELD");
  refused_with("/model/vocab/ab", Json::array({1}),
               ": model.vocab: \"ab\" has an array where its id (a whole number) belongs", "TOK_FIELD");
  const std::string shape = "]: a merge is \"left right\" or [\"left\", \"right\"]";
  for (const Json& merge : {Json("ab"), Json("a b c"), Json(" a"), Json({"a"}), Json({"a", "b", "c"}), Json({"a", 1}),
                            Json(3), Json::object()})
    refused_with("/model/merges/1", merge, ": model.merges[1" + shape, "TOK_FIELD");
  refused_with("/model/merges/1", "ab q", ": model.merges[1]: token \"abq\" is not in model.vocab", "TOK_INCONSISTENT");
  refused_with("/model/vocab", Json::object(), ": model.vocab is missing or empty", "TOK_FIELD");
  refused_with("/model/vocab", Json::array(),
               ": model.vocab must be an object of tokens and ids; only byte-level BPE can be used", "TOK_FIELD");
  for (const Json& merges : {Json(nullptr), Json("a b"), Json({{"a", "b"}})})
    refused_with("/model/merges", merges, ": model.merges must be a list", "TOK_FIELD");
  Json without = small();
  without["model"].erase("merges");
  refused(without, ": model.merges is missing", "TOK_FIELD");
  refused(Json::object(), ": \"model\" is missing", "TOK_FIELD");
  refused(std::string("{\"model.vocab\": {\"a\": 0}}"), ": \"model\" is missing", "TOK_FIELD");
}

TEST_F(Refusal, AddedTokensThatContradictTheVocabulary) {
  refused_with("/added_tokens/0/id", 95, ": added_tokens[0]: id 95 of \"<s>\" belongs to \"ab\" in model.vocab",
               "TOK_INCONSISTENT");
  refused_with("/added_tokens/0/content", "ab", ": added_tokens[0]: \"ab\" has id 97 here and 95 in model.vocab",
               "TOK_INCONSISTENT");
  refused_with("/added_tokens/0/content", "", ": added_tokens[0]: \"content\" must be a text that is not empty",
               "TOK_FIELD");
  refused_with("/added_tokens/0/id", -1,
               ": added_tokens[0]: \"id\" of \"<s>\" must be a whole number from 0 to 1999999", "TOK_FIELD");
  refused_with("/added_tokens/0/lstrip", 1, ": added_tokens[0]: \"lstrip\" must be true or false", "TOK_FIELD");
  refused_with("/added_tokens", Json::object(), ": \"added_tokens\" must be a list", "TOK_FIELD");
}

TEST_F(Refusal, OtherKindsOfTokenizers) {
  refused_with("/model/type", "Unigram", ": model.type is \"Unigram\"; only byte-level BPE tokenizers can be used",
               "TOK_UNSUPPORTED");
  refused_with("/model/byte_fallback", true,
               ": model.byte_fallback belongs to SentencePiece vocabularies; only byte-level BPE can be used",
               "TOK_UNSUPPORTED");
  refused_with("/model/dropout", 0.1, ": model.dropout is 0.1; only null can be used", "TOK_UNSUPPORTED");
  refused_with("/model/end_of_word_suffix", "</w>", ": model.end_of_word_suffix is \"</w>\"; only null can be used",
               "TOK_UNSUPPORTED");
  refused_with("/model/unk_token", "?!", ": model.unk_token \"?!\" is not in model.vocab", "TOK_INCONSISTENT");
  refused_with("/normalizer", {{"type", "Lowercase"}},
               ": normalizer: normalizer \"Lowercase\" is not supported; known: NFC, NFD, NFKC, NFKD, Sequence",
               "TOK_UNSUPPORTED");
  refused_with(
      "/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Metaspace"}}}}},
      ": pre_tokenizer.pretokenizers[0]: pre-tokenizer \"Metaspace\" is not supported; known: Sequence, Split, "
      "ByteLevel",
      "TOK_UNSUPPORTED");
  refused_with(
      "/pre_tokenizer", {{"type", "a\x1b[2J\nok"}},
      ": pre_tokenizer: pre-tokenizer \"a\\x1b[2J\\x0aok\" is not supported; known: Sequence, Split, ByteLevel",
      "TOK_UNSUPPORTED");
  refused_with("/normalizer", {{"type", "\u009b2J"}},
               ": normalizer: normalizer \"\\xc2\\x9b2J\" is not supported; known: NFC, NFD, NFKC, NFKD, Sequence",
               "TOK_UNSUPPORTED");
  std::string ones = "[";
  for (int i = 0; i < 39; ++i) ones += "1,";
  refused_with("/model/type", std::vector<int>(1000, 1),
               ": model.type is " + ones + "1...; only byte-level BPE tokenizers can be used", "TOK_UNSUPPORTED");
  refused_with("/pre_tokenizer", nullptr,
               ": pre_tokenizer: 0 ByteLevel steps; only byte-level BPE tokenizers, with one, can be used",
               "TOK_UNSUPPORTED");
  refused_with("/post_processor", {{"type", "RobertaProcessing"}},
               ": post_processor: post-processor \"RobertaProcessing\" is not supported; known: ByteLevel, "
               "TemplateProcessing, Sequence",
               "TOK_UNSUPPORTED");
  refused_with("/post_processor", {{"type", "TemplateProcessing"}, {"single", Json::array()}},
               ": post_processor.single: must hold the text exactly once", "TOK_FIELD");
  const Json text{{"Sequence", {{"id", "A"}}}}, special{{"SpecialToken", {{"id", "<s>"}}}};
  refused_with("/post_processor",
               {{"type", "TemplateProcessing"},
                {"single", Json::array({special, text})},
                {"special_tokens", {{"<s>", {{"ids", {98}}}}}}},
               ": post_processor.special_tokens: id 98 of \"<s>\" is neither in model.vocab nor among added_tokens",
               "TOK_INCONSISTENT");
}

TEST_F(Refusal, RegularExpressionsThatCannotBeUsed) {
  const auto split = [](const Json& pattern) {
    return Json{{"type", "Split"}, {"pattern", pattern}, {"behavior", "Isolated"}, {"invert", false}};
  };
  refused_with("/pre_tokenizer", split({{"Regex", "a("}}),
               ": pre_tokenizer.pattern: regular expression \"a(\", offset 2: missing closing parenthesis",
               "TOK_REGEX");
  refused_with("/pre_tokenizer", split("a"), ": pre_tokenizer.pattern: must be {\"Regex\": ...} or {\"String\": ...}",
               "TOK_FIELD");
  Json content = small();
  content["pre_tokenizer"] = {{"type", "Sequence"},
                              {"pretokenizers", {split({{"Regex", "(a|a?)+[bc]"}}), small()["pre_tokenizer"]}}};
  const Tokenizer tokenizer = load(content);
  EXPECT_EQ(tokenizer.encode("ab").size(), 1U);
  try {  // exponential backtracking ends at the match limit
    (void)tokenizer.encode(std::string(5000, 'a'));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "TOK_REGEX");
    EXPECT_EQ(error.what(),
              std::string(
                  "regular expression \"(a|a?)+[bc]\" gave up at byte 0 of the text: match limit exceeded; shorten the "
                  "text"));
  }
}

TEST_F(Refusal, TextsThatAreNoText) {
  const Tokenizer tokenizer = load(small());
  const auto at = [](int byte) {
    return "text is not valid UTF-8 at byte " + std::to_string(byte) + "; save it as UTF-8";
  };
  expect_error(at(2), "TOK_TEXT", [&] { (void)tokenizer.encode("ab\xFF"); });
  expect_error(at(0), "TOK_TEXT", [&] { (void)tokenizer.encode("\xC0\xAF"); });          // overlong
  expect_error(at(1), "TOK_TEXT", [&] { (void)tokenizer.encode("a\xED\xA0\x80"); });     // surrogate
  expect_error(at(0), "TOK_TEXT", [&] { (void)tokenizer.encode("\xF4\x90\x80\x80"); });  // beyond U+10FFFF
  expect_error(at(3), "TOK_TEXT", [&] { (void)tokenizer.encode("\u00e9-\xE2\x82"); });   // cut off
  expect_error("text of 16777217 bytes; at most 16 MiB can be tokenized", "TOK_TEXT",
               [&] { (void)tokenizer.encode(std::string(kMaxTextBytes + 1, 'a')); });
  // the small vocabulary has no letter for these bytes and no unknown token
  expect_error(file().string() + ": the vocabulary has no token for \"\u00c3\" (byte alphabet) and no unk_token",
               "TOK_UNKNOWN", [&] { (void)tokenizer.encode("\u00e9"); });
  expect_error("token id 98 is not in the vocabulary; the largest id is 97", "TOK_ID",
               [&] { (void)tokenizer.decode(std::vector<int64_t>{98}); });
  expect_error("token id -1 is not in the vocabulary; the largest id is 97", "TOK_ID",
               [&] { (void)tokenizer.decode(std::vector<int64_t>{-1}); });
}

}  // namespace
}  // namespace trainer::text
