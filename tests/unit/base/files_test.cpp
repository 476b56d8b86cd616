#include <base/entries.hpp>
#include <base/files.hpp>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <trainer/sdk/error.hpp>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <tuple>
#include <vector>

namespace trainer {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("files_test." + std::to_string(getpid()));
    make_folders(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  static void expect_error(ExitCode code, const std::string& message, const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "no error, expected: " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), code);
      EXPECT_EQ(error.what(), message);
    }
  }
  fs::path folder_;
};

TEST_F(Files, WritesAndReads) {
  const fs::path file = folder_ / "a.txt";
  write_file_atomically(file, "one");
  write_file_atomically(file, std::string_view("two\0three", 9));
  EXPECT_EQ(read_file(file, 9, "recipe"), std::string("two\0three", 9));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);  // no temporary file is left
}

TEST_F(Files, RefusesWhatItCannotRead) {
  const fs::path file = folder_ / "a.txt";
  expect_error(ExitCode::not_found, "cannot open recipe " + file.string() + ": No such file or directory",
               [&] { (void)read_file(file, 10, "recipe"); });
  write_file_atomically(file, "0123456789");
  expect_error(ExitCode::bad_input, "recipe " + file.string() + " is larger than 9 bytes",
               [&] { (void)read_file(file, 9, "recipe"); });
  expect_error(ExitCode::bad_input, "recipe " + folder_.string() + " is a folder",
               [&] { (void)read_file(folder_, 9, "recipe"); });
  const fs::path fifo = folder_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  expect_error(ExitCode::bad_input, "recipe " + fifo.string() + " is not a regular file",
               [&] { (void)read_file(fifo, 9, "recipe"); });
  expect_error(ExitCode::bad_input, "status /proc/self/status is larger than 5 bytes",  // says size 0, holds more
               [] { (void)read_file("/proc/self/status", 5, "status"); });
}

TEST_F(Files, AFailedWriteLeavesTheOldFile) {
  const fs::path target = folder_ / "target";
  make_folders(target);  // a folder cannot be replaced by a file
  expect_error(ExitCode::io, "cannot replace " + target.string() + ": it is a folder; name another file",
               [&] { write_file_atomically(target, "x"); });
  EXPECT_TRUE(fs::is_directory(target));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

/// As root a rename makes a file of /dev/null, for every program of the machine.
TEST_F(Files, OnlyAFileIsReplaced) {
  const fs::path fifo = folder_ / "fifo", link = folder_ / "link", loop = folder_ / "loop", gone = folder_ / "gone";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  fs::create_symlink(fifo, link);
  fs::create_symlink(loop, loop);
  fs::create_symlink(folder_ / "nothing", gone);
  for (const fs::path& one : {fifo, link})
    expect_error(ExitCode::io,
                 "cannot replace " + one.string() + ": it is a device, FIFO or socket, not a file; name another file",
                 [&] { write_file_atomically(one, "x"); });
  EXPECT_TRUE(fs::is_fifo(fifo));
  expect_error(ExitCode::io,
               loop.string() +
                   ": Too many levels of symbolic links; a link in it leads back to itself: name the file "
                   "or folder meant",
               [&] { write_file_atomically(loop, "x"); });
  write_file_atomically(gone, "x");
  fs::create_symlink(gone, folder_ / "to_file");
  write_file_atomically(folder_ / "to_file", "y");
  EXPECT_EQ(read_file(gone, 1, "file"), "x") << "the link is replaced, not what it leads to";
}

TEST_F(Files, WhatCannotBeLookedAtSaysWhyAndWhatToDo) {
  const auto told = [](const fs::path& path, int number) {
    return error_of(fs::filesystem_error("status", path, std::error_code(number, std::generic_category())));
  };
  for (const auto& [number, code, text] : std::vector<std::tuple<int, ExitCode, std::string>>{
           {ENOENT, ExitCode::not_found, "No such file or directory; check how it is spelled"},
           {ENOTDIR, ExitCode::not_found, "Not a directory; check how it is spelled"},
           {EACCES, ExitCode::io,
            "Permission denied; allow this user to read it and to enter the folders on the way to it"},
           {ENAMETOOLONG, ExitCode::io, "File name too long; shorten it: a name has at most 255 bytes, a path 4095"},
           {EIO, ExitCode::io, "Input/output error"}}) {
    EXPECT_EQ(told("a/b", number).what(), "a/b: " + text);
    EXPECT_EQ(told("a/b", number).exit_code(), code) << text;
  }
  EXPECT_EQ(told("a", EACCES).code(), "IO_PERMISSION");
}

TEST_F(Files, MakesFolders) {
  make_folders(folder_ / "a/b/c");
  make_folders(folder_ / "a/b/c");
  EXPECT_TRUE(fs::is_directory(folder_ / "a/b/c"));
  write_file_atomically(folder_ / "file", "");
  expect_error(ExitCode::io, "cannot create folder " + (folder_ / "file").string() + ": a file of that name exists",
               [&] { make_folders(folder_ / "file/x"); });
}

TEST_F(Files, CacheFolderFollowsTheEnvironment) {
  const char* home = std::getenv("HOME");
  const std::string old_home = home == nullptr ? "" : home;
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(user_cache_folder(), "/x/trainer");
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "/h", 1);
  EXPECT_EQ(user_cache_folder(), "/h/.cache/trainer");
  unsetenv("XDG_CONFIG_HOME");
  EXPECT_EQ(user_config_folder(), "/h/.config/trainer");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(user_cache_folder(), "");
  setenv("HOME", old_home.c_str(), 1);
}

TEST(MakeFolders, TheParentOfABareNameIsTheCurrentFolder) {
  EXPECT_NO_THROW(make_folders(std::filesystem::path("samples.png").parent_path()));
}

TEST_F(Files, NothingThereAndNotKnownAreTwoAnswers) {
  write_file_atomically(folder_ / "file", "abc");
  EXPECT_EQ(type_of(folder_), fs::file_type::directory);
  EXPECT_EQ(type_of(folder_ / "file"), fs::file_type::regular);
  EXPECT_EQ(type_of(folder_ / "nothing"), fs::file_type::not_found);
  EXPECT_EQ(type_of(folder_ / "file/below"), fs::file_type::not_found);
  EXPECT_EQ(size_of(folder_ / "file"), 3U);
  EXPECT_EQ(size_of(folder_ / "nothing"), std::nullopt);
  EXPECT_EQ(size_of(folder_), std::nullopt);
  write_file_atomically(folder_ / ".hidden", "");
  EXPECT_EQ(names_in(folder_), (std::vector<std::string>{".hidden", "file"}));
  EXPECT_TRUE(names_in(folder_ / "nothing").empty());
  fs::create_symlink("loop", folder_ / "loop");
  const std::string message = "cannot look at " + (folder_ / "loop").string() + ": Too many levels of symbolic links";
  for (const auto& look : std::vector<std::function<void()>>{
           [&] { type_of(folder_ / "loop"); }, [&] { size_of(folder_ / "loop"); }, [&] { names_in(folder_ / "loop"); }})
    expect_error(ExitCode::io, message, look);
}

}  // namespace
}  // namespace trainer
