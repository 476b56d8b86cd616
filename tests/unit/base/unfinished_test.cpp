/// @file Half-written files of killed processes: which they are, and which of them go.
#include <base/unfinished.hpp>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace trainer {
namespace {

namespace fs = std::filesystem;
using FileNames = std::set<std::string>;

class Unfinished : public testing::Test {
 protected:
  Unfinished() {
    std::string name = (fs::temp_directory_path() / "trainer-unfinished-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~Unfinished() override { fs::remove_all(folder_); }
  void write(const std::string& name) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << "half";
  }
  /// Files, also those below.
  [[nodiscard]] FileNames names() const {
    FileNames all;
    for (const auto& entry : fs::recursive_directory_iterator(folder_))
      if (!entry.is_directory()) all.insert(entry.path().lexically_relative(folder_).string());
    return all;
  }
  fs::path folder_;
};

/// The id of a process that was there.
std::string ended_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return std::to_string(child);
}

TEST_F(Unfinished, TheirNames) {
  for (const char* name : {".x.safetensors.tmp-12-0", ".run.json.tmp-1-23", ".a.tmp-b.tmp-3-4"})
    EXPECT_TRUE(is_unfinished(name)) << name;
  for (const char* name : {"x.safetensors", ".x.safetensors", "x.tmp-12-0", ".x.tmp-12", ".x.tmp-12-", ".x.tmp--0",
                           ".x.tmp-12-0.safetensors", ".tmp-12-0", ".tmp-9-run-1", ".x.tmp-a-0", ".x.tmp-12-b", ""})
    EXPECT_FALSE(is_unfinished(name)) << name;
}

TEST_F(Unfinished, ThoseOfProcessesThatAreGoneAreDeleted) {
  const std::string gone = ended_process(), parent = std::to_string(::getppid()), self = std::to_string(::getpid());
  for (const std::string& name : {".x.tmp-" + gone + "-0", ".x.tmp-" + self + "-7", ".x.tmp-" + parent + "-1",
                                  "below/.x.tmp-" + gone + "-0", std::string("x.tmp-1-0"), std::string(".lock")})
    write(name);
  fs::create_directory(folder_ / (".folder.tmp-" + gone + "-0"));
  remove_unfinished(folder_);
  EXPECT_EQ(names(), (FileNames{".x.tmp-" + parent + "-1", "below/.x.tmp-" + gone + "-0", "x.tmp-1-0", ".lock"}));
  EXPECT_TRUE(fs::exists(folder_ / (".folder.tmp-" + gone + "-0"))) << "no file of ours";
  remove_unfinished(folder_ / "nowhere");
  fs::create_directory_symlink(folder_ / "below", folder_ / "link");
  remove_unfinished(folder_ / "link");
  EXPECT_TRUE(fs::exists(folder_ / "below" / (".x.tmp-" + gone + "-0"))) << "others may write where a link leads";
}

}  // namespace
}  // namespace trainer
