/// @file Files for the tokenizer's tests: JSON of the source tree, and tokenizer.json files written to a scratch
/// folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>
#include <base/files.hpp>
#include <text/tokenizer.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace trainer::text {

/// tests/data of the source tree.
inline std::filesystem::path data_folder() {
  const char* root = std::getenv("TRAINER_SOURCE_ROOT");
  return std::filesystem::path(root == nullptr ? "." : root) / "tests/data";
}

inline nlohmann::json read_json(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) throw std::runtime_error("cannot open " + file.string());
  return nlohmann::json::parse(stream);
}

/// Writes tokenizer.json files and removes them afterwards.
class TokenizerFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("trainer_text_test_" + std::to_string(getpid()));
    make_folders(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::filesystem::path file() const { return folder_ / "tokenizer.json"; }
  [[nodiscard]] Tokenizer load_content(const std::string& content) const {
    write_file_atomically(file(), content);
    return Tokenizer::load(file());
  }
  [[nodiscard]] Tokenizer load(const nlohmann::json& content) const { return load_content(content.dump()); }

 private:
  std::filesystem::path folder_;
};

}  // namespace trainer::text
