// Each feature of tokenizer.json alone, against vectors of the tokenizers library
// (tests/data/tokenizer/make_features.py).
#include "text_files.hpp"

#include <thread>

namespace trainer::text {
namespace {

using Ids = std::vector<int64_t>;

class Features : public TokenizerFiles {
 protected:
  /// The tokenizer of the list with that name.
  [[nodiscard]] nlohmann::json tokenizer_named(const std::string& name) const {
    for (const nlohmann::json& entry : features_.at("tokenizers"))
      if (entry.at("name") == name) return whole(entry);
    throw std::runtime_error("no tokenizer " + name);
  }
  [[nodiscard]] nlohmann::json whole(const nlohmann::json& entry) const {
    nlohmann::json content = entry.at("tokenizer");
    content["model"] = features_.at("model");
    content["model"].update(entry.at("model"));
    return content;
  }
  nlohmann::json features_ = read_json(data_folder() / "tokenizer/features.json");
};

TEST_F(Features, GiveTheReferenceIds) {
  ASSERT_EQ(features_.at("tokenizers").size(), 38U);
  for (const nlohmann::json& entry : features_.at("tokenizers")) {
    const Tokenizer tokenizer = load(whole(entry));
    for (const nlohmann::json& vector : entry.at("cases")) {
      const auto text = vector.at("text").get<std::string>();
      const auto where = [&] { return entry.at("name").get<std::string>() + ": " + vector.at("text").dump(); };
      const Ids ids = tokenizer.encode(text);
      EXPECT_EQ(ids, vector.at("ids").get<Ids>()) << where();
      EXPECT_EQ(tokenizer.encode(text, true), vector.at("with_special").get<Ids>()) << where();
      if (!vector.contains("decoded")) continue;
      EXPECT_EQ(tokenizer.decode(ids), vector.at("decoded").get<std::string>()) << where();
      EXPECT_EQ(tokenizer.decode(ids, true), vector.at("skipped").get<std::string>()) << where();
    }
  }
}

TEST_F(Features, TheOrderOfKeysDoesNotMatter) {
  // merges before vocab, model before the rest
  const nlohmann::json content = tokenizer_named("split regex");
  nlohmann::ordered_json turned;
  turned["model"]["merges"] = content["model"]["merges"];
  turned["model"]["vocab"] = content["model"]["vocab"];
  turned["pre_tokenizer"] = content["pre_tokenizer"];
  const std::string text = "hello red-fox don't";
  EXPECT_EQ(load_content(turned.dump(1)).encode(text), load(content).encode(text));
}

TEST_F(Features, AddedTokensDecodeAsWritten) {
  const Tokenizer tokenizer = load(tokenizer_named("decomposed added token"));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("<\u00e9>fox")), "<e\u0301>fox");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("<\u00e9>fox"), true), "fox");
}

TEST_F(Features, TheCacheChangesNothing) {
  const Tokenizer tokenizer = load(tokenizer_named("split regex"));
  std::string text;
  for (int i = 0; i < 40000; ++i) text += " fox" + std::to_string(i) + "forest";  // more pieces than are kept
  const Ids first = tokenizer.encode(text);
  EXPECT_EQ(tokenizer.encode(text), first);
  EXPECT_EQ(tokenizer.decode(first), text);
}

TEST_F(Features, SeveralThreadsMayEncode) {
  const Tokenizer tokenizer = load(tokenizer_named("normalizer NFC"));
  const std::vector<std::string> texts = {"hello world", "red-fox in the forest", "Straße e\u0301", "don't 1234"};
  std::vector<Ids> expected;
  for (const std::string& text : texts) expected.push_back(tokenizer.encode(text));
  const Tokenizer fresh = load(tokenizer_named("normalizer NFC"));
  std::vector<std::vector<Ids>> results(4);
  std::vector<std::thread> threads;
  for (std::vector<Ids>& result : results)
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        result.clear();
        for (const std::string& text : texts) result.push_back(fresh.encode(text));
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<Ids>& result : results) EXPECT_EQ(result, expected);
}

TEST_F(Features, LongTextsTakeLinearTime) {
  // Each of these takes minutes with a quadratic merge, mark order or search; the test's time limit is the assertion.
  const Tokenizer tokenizer = load(tokenizer_named("normalizer NFC"));
  const std::size_t letters = 100'000;
  EXPECT_EQ(tokenizer.encode(std::string(letters, 'a')).size(), letters);
  EXPECT_EQ(tokenizer.encode(std::string(letters, ' ')).size(), letters);
  std::string marks = "a";
  for (std::size_t i = 0; i < letters; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0327";
  const std::string ordered = tokenizer.decode(tokenizer.encode(marks));
  EXPECT_EQ(ordered.size(), marks.size() - 1);  // a and the acute became one character of two bytes
  EXPECT_EQ(ordered.substr(0, 6), "\u00e1\u0327\u0327");
  std::string word;
  for (std::size_t i = 0; i < letters; ++i) word += "world";
  EXPECT_EQ(tokenizer.encode(word), Ids(letters, *tokenizer.token_id("world")));
}

}  // namespace
}  // namespace trainer::text
