/// @file What the tests of framework/data share: fixture pictures, a folder that vanishes, errors as text.
#pragma once

#include <gtest/gtest.h>
#include <base/files.hpp>
#include <data/image.hpp>
#include <support/errors.hpp>
#include <trainer/sdk/error.hpp>

#include <sys/resource.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace trainer::data {

using test::message_of;

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(std::getenv("TRAINER_SOURCE_ROOT")) / "tests/data/images" / name;
}

inline void use_image_module() { set_image_module(std::getenv("TRAINER_IMAGE_MODULE")); }

/// Does `work` while no file or folder can be opened.
template <typename Work>
void without_files(const Work& work) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  try {
    work();
  } catch (...) {
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    throw;
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "data-test-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(folder_); }
  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }
  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, std::string_view content) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    write_file_atomically(folder_ / name, content);
  }
  void copy(const std::string& from, const std::string& name) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::filesystem::copy_file(fixture(from), folder_ / name);
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace trainer::data
