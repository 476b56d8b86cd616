/// @file No room on the disk: nothing half-written stays, and what was saved before is still there, bit for bit.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <checkpoint/signals.hpp>
#include <trainer/sdk/error.hpp>

#include "fixture.hpp"

namespace trainer::checkpoint {
namespace {

Content large(int salt) {
  Content content = content_of(salt);
  content.tensors["param.large"] = at::full({40000}, salt + 0.5, at::kFloat);
  return content;
}

/// "" when `failed` left the store as it was: only step 1, whole, and no rubbish.
std::string only_the_first(Store& store, const fs::path& run) {
  if (entries(run / "ckpt") != std::set<std::string>{"step-0000000001"}) return "something was left behind";
  std::vector<std::string> notes;
  const std::optional<Loaded> loaded = store.newest(notes);
  if (!loaded || !notes.empty()) return "the first checkpoint is lost";
  for (const auto& [name, tensor] : content_of(1).tensors)
    if (!test::same_bits(tensor, loaded->content.tensors.at(name))) return name + " changed";
  return "";
}

/// A limit on file sizes fails the write as a full disk does; also with the state, the second file.
TEST(DiskFull, FileSizeLimit) {
  for (const bool state : {false, true}) {
    const Folder folder;
    const std::string result = in_child([&] {
      catch_stop_signals();  // SIGXFSZ would end the process
      Store store(folder.path(), "run");
      store.save(1, content_of(1), {});
      const rlimit limit{65536, 65536};
      if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return std::string("no limit");
      Content content = state ? content_of(2) : large(2);
      if (state) content.state = std::string(100000, ' ');
      try {
        store.save(2, content, {});
        return std::string("saved above the limit");
      } catch (const Error& error) {
        if (error.exit_code() != ExitCode::io || error.code() != "IO_FILE_SIZE" ||
            std::string(error.what()).find("ulimit -f") == std::string::npos)
          return "another error: " + error.code() + " " + error.what();
      }
      if (const std::string problem = only_the_first(store, folder.path()); !problem.empty()) return problem;
      store.save(3, content_of(3), {});  // a smaller one still goes
      return std::string();
    });
    EXPECT_EQ(result, "") << (state ? "state" : "tensors");
  }
}

/// Leaves `bytes` free in a small file system by sizing a filler file.
bool leave_free(const fs::path& filler, int64_t bytes) {
  const int fd = ::open(filler.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  const std::vector<char> block(4096, 'x');
  int64_t written = 0;
  while (::write(fd, block.data(), block.size()) == static_cast<ssize_t>(block.size())) written += 4096;
  const bool done = ::ftruncate(fd, std::max<int64_t>(0, written - bytes)) == 0;
  ::close(fd);
  return done;
}

std::string fill_step_by_step(const fs::path& root) {
  Store store(root, "run");
  store.save(1, content_of(1), {});
  int failures = 0;
  for (int64_t pages = 0; pages < 100; ++pages) {
    if (!leave_free(root / "filler", pages * 4096)) return "no filler";
    try {
      store.save(2, large(2), {});
      fs::remove(root / "filler");
      std::vector<std::string> notes;
      const std::optional<Loaded> loaded = store.newest(notes);
      if (!loaded || loaded->manifest.step != 2 || loaded->content.state != large(2).state)
        return "saved, but not whole";
      return failures > 10 ? "" : "only " + std::to_string(failures) + " failures were seen";
    } catch (const Error& error) {
      ++failures;
      const std::string text = error.what();
      if (pages == 0 &&
          (text.find("a checkpoint needs ") == std::string::npos || text.find(" are free") == std::string::npos))
        return "an empty disk is not seen before writing: " + text;
      if (error.exit_code() != ExitCode::io || error.code() != "IO_NO_SPACE")
        return "another error with " + std::to_string(pages) + " pages: " + error.code() + " " + error.what();
    }
    if (const std::string problem = only_the_first(store, root); !problem.empty())
      return std::to_string(pages) + " pages free: " + problem;
  }
  return "never enough room";
}

/// A file system of 1 MB, filled so that a save fails later and later, until it fits.
TEST(DiskFull, SmallFileSystem) {
  const Folder folder;
  const std::string result = in_child([&]() -> std::string {
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return "SKIP no mount namespace";
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return "SKIP no private mounts";
    if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0) return "SKIP no tmpfs";
    return fill_step_by_step(folder.path());
  });
  if (result.starts_with("SKIP")) GTEST_SKIP() << result;
  EXPECT_EQ(result, "");
}

}  // namespace
}  // namespace trainer::checkpoint
