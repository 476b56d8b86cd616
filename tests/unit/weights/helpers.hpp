/// @file Folders and files for the tests of this module.
#pragma once

#include <gtest/gtest.h>
#include <trainer/sdk/error.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

namespace trainer::weights {

/// An empty folder, removed at the end of the test.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "weights-test-XXXXXX").string();
    path_ = std::filesystem::canonical(::mkdtemp(pattern.data()));
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }
  [[nodiscard]] std::size_t count() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

inline std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// A file below tests/data.
inline std::filesystem::path data_file(const std::string& name) {
  const char* root = std::getenv("TRAINER_SOURCE_ROOT");
  if (root == nullptr) throw std::runtime_error("TRAINER_SOURCE_ROOT is not set");
  return std::filesystem::path(root) / "tests/data" / name;
}

/// Runs `action`, which must throw our Error, and returns it.
template <typename Action>
Error error_of(Action&& action) {
  try {
    std::forward<Action>(action)();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no Error was thrown";
  return {ExitCode::done, "nothing"};
}

#define EXPECT_ERROR(action, expected_exit, expected_code, piece)                        \
  do {                                                                                   \
    const trainer::Error error = trainer::weights::error_of([&] { (void)(action); });    \
    EXPECT_EQ(error.exit_code(), expected_exit) << error.what();                         \
    EXPECT_EQ(error.code(), expected_code) << error.what();                              \
    EXPECT_NE(std::string(error.what()).find(piece), std::string::npos) << error.what(); \
  } while (false)

}  // namespace trainer::weights
