// Ids against those of transformers and tokenizers: the parity directories of the source tree, or the one that
// TRAINER_PARITY_DIR names; and, where TRAINER_REAL_TOKENIZERS names a folder with tekken_file.json, tekken_tekken.json
// and qwen.json (tokenizer.json files made from the real vocabularies), the stored vectors of those.
#include "text_files.hpp"

#include <trainer/sdk/error.hpp>

#include <cstring>
#include <iostream>

namespace trainer::text {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

std::vector<fs::path> parity_folders() {
  if (const char* folder = std::getenv("TRAINER_PARITY_DIR")) return {folder};
  return {data_folder() / "parity/tiny-dev", data_folder() / "parity/tiny-klein"};
}

/// Rows of an int64 matrix in a safetensors file.
std::vector<Ids> read_rows(const fs::path& file, const std::string& tensor) {
  const std::string bytes = read_file(file, std::size_t{1} << 30, "parity data");
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof header_size);
  const nlohmann::json entry = nlohmann::json::parse(bytes.substr(8, header_size)).at(tensor);
  EXPECT_EQ(entry.at("dtype"), "I64");
  std::vector<Ids> rows(entry.at("shape")[0].get<std::size_t>(), Ids(entry.at("shape")[1].get<std::size_t>()));
  const char* data = bytes.data() + 8 + header_size + entry.at("data_offsets")[0].get<std::size_t>();
  for (Ids& row : rows) {
    std::memcpy(row.data(), data, row.size() * sizeof(int64_t));
    data += row.size() * sizeof(int64_t);
  }
  return rows;
}

TEST(TokenizerParity, EveryTextGivesTheReferenceIds) {
  for (const fs::path& folder : parity_folders()) {
    const Tokenizer tokenizer = Tokenizer::load(folder / "model/tokenizer/tokenizer.json");
    const nlohmann::json cases = read_json(folder / "text.json").at("tokenizer");
    EXPECT_GE(cases.size(), 60U) << folder;
    for (const nlohmann::json& entry : cases) {
      const auto text = entry.at("text").get<std::string>();
      EXPECT_EQ(tokenizer.encode(text), entry.at("ids").get<Ids>()) << folder << ": " << text;
      EXPECT_EQ(tokenizer.encode(text, true), entry.at("ids_with_special").get<Ids>()) << folder << ": " << text;
    }
  }
}

TEST(TokenizerParity, RenderedCaptionsGiveTheRowsOfThePipeline) {
  for (const fs::path& folder : parity_folders()) {
    const Tokenizer tokenizer = Tokenizer::load(folder / "model/tokenizer/tokenizer.json");
    const nlohmann::json reference = read_json(folder / "text.json");
    const auto length = reference.at("max_sequence_length").get<std::size_t>();
    const auto pad = reference.at("pad_token_id").get<int64_t>();
    const bool left = reference.at("padding_side") == "left";
    const std::vector<Ids> rows = read_rows(folder / "text.safetensors", "input_ids");
    const nlohmann::json& captions = reference.at("captions");
    ASSERT_EQ(captions.size(), rows.size()) << folder;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Ids ids = tokenizer.encode(captions[i].at("rendered").get<std::string>());
      EXPECT_EQ(ids.size() > length, captions[i].at("truncated").get<bool>()) << folder << ": caption " << i;
      ids.resize(std::min(ids.size(), length));
      EXPECT_EQ(ids.size(), captions[i].at("tokens").get<std::size_t>()) << folder << ": caption " << i;
      ids.insert(left ? ids.begin() : ids.end(), length - ids.size(), pad);
      EXPECT_EQ(ids, rows[i]) << folder << ": caption " << i;
    }
  }
}

TEST(TokenizerParity, DecodingUndoesEncoding) {
  for (const fs::path& folder : parity_folders()) {
    const Tokenizer tokenizer = Tokenizer::load(folder / "model/tokenizer/tokenizer.json");
    const bool normalises = !read_json(folder / "model/tokenizer/tokenizer.json").at("normalizer").is_null();
    const nlohmann::json recorded = read_json(folder / "text.json");
    for (const nlohmann::json& entry : recorded.at("tokenizer")) {
      const auto text = entry.at("text").get<std::string>();
      const std::string decoded = tokenizer.decode(tokenizer.encode(text));
      if (!normalises) {
        EXPECT_EQ(decoded, text) << folder;
      }
      EXPECT_EQ(tokenizer.encode(decoded), entry.at("ids").get<Ids>()) << folder << ": " << text;
    }
  }
}

TEST(TokenizerParity, KnowsTheTokensThatPromptsUse) {
  const fs::path folder = data_folder() / "parity";
  const Tokenizer mistral = Tokenizer::load(folder / "tiny-dev/model/tokenizer/tokenizer.json");
  EXPECT_EQ(mistral.token_id("<s>"), 1);
  EXPECT_EQ(mistral.token_id("[/SYSTEM_PROMPT]"), 18);
  EXPECT_EQ(mistral.token_id("<|im_start|>"), std::nullopt);
  EXPECT_EQ(mistral.vocabulary_size(), 1024U);
  EXPECT_EQ(mistral.max_id(), 1023);
  EXPECT_EQ(mistral.content_hash(), "fdc588b45112f431c6c780cafee02143");
  const Tokenizer qwen = Tokenizer::load(folder / "tiny-klein/model/tokenizer/tokenizer.json");
  EXPECT_EQ(qwen.token_id("<|endoftext|>"), 998);
  EXPECT_EQ(qwen.token_id("</think>"), 1023);
  EXPECT_EQ(qwen.vocabulary_size(), 1024U);
  EXPECT_EQ(qwen.content_hash(), "13f3e908abab4475af9e528369751ace");
}

TEST(TokenizerParity, RealVocabularies) {
  const char* folder = std::getenv("TRAINER_REAL_TOKENIZERS");
  if (folder == nullptr) GTEST_SKIP() << "TRAINER_REAL_TOKENIZERS names no folder";
  struct Set {
    const char* tokenizer;
    const char* vectors;
    const char* key;
  };
  for (const Set& set :
       {Set{"tekken_file.json", "tekken.json", "ids_file_regex"},
        Set{"tekken_tekken.json", "tekken.json", "ids_tekken_regex"}, Set{"qwen.json", "qwen.json", "ids"}}) {
    const Tokenizer tokenizer = Tokenizer::load(fs::path(folder) / set.tokenizer);
    const nlohmann::json vectors = read_json(data_folder() / "parity/tokenizer-real" / set.vectors);
    std::size_t agree = 0;
    for (const char* list : {"cases", "chat"})
      for (const nlohmann::json& entry : vectors.at(list)) {
        const auto text = entry.contains("text") ? entry.at("text") : entry.at("rendered");
        EXPECT_EQ(tokenizer.encode(text.get<std::string>()), entry.at(set.key).get<Ids>())
            << set.tokenizer << ": " << text;
        ++agree;
      }
    std::cout << set.tokenizer << ": " << agree << " vectors compared\n";
  }
}

}  // namespace
}  // namespace trainer::text
