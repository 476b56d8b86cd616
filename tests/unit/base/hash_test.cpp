#include <base/hash.hpp>

#include <gtest/gtest.h>
#include <base/files.hpp>
#include <trainer/sdk/error.hpp>

#include <unistd.h>

#include <set>

namespace trainer {
namespace {

TEST(Hash, KnownAnswers) {
  EXPECT_EQ(xxh128(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(xxh128("a"), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Hash, FilesHashAsTheirContent) {
  const auto file = std::filesystem::temp_directory_path() / ("hash_test." + std::to_string(getpid()));
  std::string content(3'000'001, '\0');  // several chunks
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 >> 3);
  write_file_atomically(file, content);
  EXPECT_EQ(xxh128_file(file), xxh128(content));
  EXPECT_EQ(sha256_file(file), sha256(content));
  std::filesystem::remove(file);
  try {
    (void)sha256_file(file);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::not_found);
    EXPECT_EQ(error.what(), "cannot open " + file.string() + ": No such file or directory");
  }
}

TEST(Hash, FieldsAreUnambiguous) {
  std::set<std::string> seen;
  seen.insert(FieldHash().hex());
  seen.insert(FieldHash().add("").hex());
  seen.insert(FieldHash().add("ab").hex());
  seen.insert(FieldHash().add("a").add("b").hex());
  seen.insert(FieldHash().add("").add("ab").hex());
  seen.insert(FieldHash().add(int64_t{25185}).hex());  // the bytes of "ab"
  seen.insert(FieldHash().add(int64_t{-1}).hex());
  EXPECT_EQ(seen.size(), 7U);
  EXPECT_EQ(FieldHash().add("a").add(int64_t{7}).hex(), FieldHash().add("a").add(int64_t{7}).hex());
}

}  // namespace
}  // namespace trainer
