/// @file A library that others could have put there is not opened.
#include <unistd.h>
#include <plugin/permissions.hpp>
#include <trainer/sdk/error.hpp>

#include <cstdlib>

#include "folder.hpp"

namespace trainer::plugin {
namespace {

namespace fs = std::filesystem;
using Perms = fs::perms;

class Permissions : public ::testing::Test {
 protected:
  Permissions() { folder_.add("twins", {{"name", "\"first_twin\""}, {"plugin", "\"twins\""}}); }
  [[nodiscard]] fs::path library() const { return folder_.path() / "twins.so"; }
  void expect_refused(const std::string& text) const {
    Loader loader = folder_.loader();
    try {
      loader.require("memory", "first_twin");
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::plugin_rejected);
      EXPECT_EQ(error.code(), "PLUGIN_PERM");
      EXPECT_EQ(std::string(error.what()).rfind("plugin \"first_twin\", permissions: " + text, 0), 0U) << error.what();
    }
    EXPECT_FALSE(is_open(folder_.path().filename().string())) << "a library's constructors run when it is opened";
  }
  Folder folder_;
};

TEST_F(Permissions, ALibraryThatOthersMayWriteToIsNotOpened) {
  fs::permissions(library(), Perms::others_write, fs::perm_options::add);
  expect_refused(library().string() + " can be written to by everyone");
}

TEST_F(Permissions, NorOneInAFolderThatOthersMayWriteTo) {
  fs::permissions(folder_.path(), Perms::others_write, fs::perm_options::add);
  expect_refused(folder_.path().string() + " can be written to by everyone");
  fs::permissions(folder_.path(), Perms::sticky_bit, fs::perm_options::add);  // as /tmp: each changes their own only
  EXPECT_EQ(writable_by_others(folder_.path()), "");
}

TEST_F(Permissions, NorBehindALinkIntoSuchAFolder) {
  const fs::path open = folder_.path() / "open";
  fs::create_directory(open);
  fs::rename(library(), open / "twins.so");
  fs::create_symlink("open/twins.so", library());
  Loader(folder_.loader()).require("memory", "first_twin");
  Folder other;
  other.add("twins", {{"name", "\"first_twin\""}, {"plugin", "\"twins\""}});
  fs::remove(other.path() / "twins.so");
  fs::create_symlink(open / "twins.so", other.path() / "twins.so");
  fs::permissions(open, Perms::others_write, fs::perm_options::add);
  EXPECT_THROW(require_safe_permissions("twins", other.path() / "twins.so"), Error);
}

TEST_F(Permissions, NorOneOfAnotherUserOrAnotherGroup) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(::chown(library().c_str(), 54321, 0), 0);
  expect_refused(library().string() + " belongs to user 54321");
  ASSERT_EQ(::chown(library().c_str(), 0, 54321), 0);
  fs::permissions(library(), Perms::group_write, fs::perm_options::add);
  expect_refused(library().string() + " can be written to by its group");
}

TEST_F(Permissions, FoldersAboveTheProgramItselfAreNotLookedAt) {
  const fs::path beside = fs::read_symlink("/proc/self/exe").parent_path() / "permissions_test.tmp";
  fs::create_directory(beside);
  fs::copy_file(library(), beside / "twins.so", fs::copy_options::overwrite_existing);
  const fs::path shared = beside.parent_path();
  const Perms before = fs::status(shared).permissions();
  fs::permissions(shared, Perms::others_write, fs::perm_options::add);
  EXPECT_NO_THROW(require_safe_permissions("twins", beside / "twins.so"));
  fs::permissions(beside, Perms::others_write, fs::perm_options::add);
  EXPECT_THROW(require_safe_permissions("twins", beside / "twins.so"), Error);
  fs::permissions(shared, before);
  fs::remove_all(beside);
}

TEST_F(Permissions, UnlessTheUserSaysSo) {
  fs::permissions(library(), Perms::others_write, fs::perm_options::add);
  ASSERT_EQ(::setenv("TRAINER_PLUGIN_PERM", "ignore", 1), 0);
  folder_.loader().require("memory", "first_twin");
  ASSERT_EQ(::unsetenv("TRAINER_PLUGIN_PERM"), 0);
}

}  // namespace
}  // namespace trainer::plugin
