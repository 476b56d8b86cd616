#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <weights/mapped_file.hpp>

#include <cstring>

#include "helpers.hpp"

namespace trainer::weights {
namespace {

namespace fs = std::filesystem;

TEST(MappedFile, ReadsAndMapsAnyPart) {
  const TempFolder folder;
  std::string content;
  for (int i = 0; i < 20'000; ++i) content += static_cast<char>('a' + i % 23);
  const MappedFile file = MappedFile::open(folder.write("f", content));
  EXPECT_EQ(file.size(), 20'000u);
  EXPECT_EQ(file.path(), folder / "f");
  for (const auto& [offset, bytes] :
       {std::pair{0u, 20'000u}, {1u, 1u}, {4095u, 2u}, {4096u, 4096u}, {8191u, 11'809u}}) {
    std::string copy(bytes, '?');
    file.read(offset, copy.data(), bytes);
    EXPECT_EQ(copy, content.substr(offset, bytes));
    EXPECT_EQ(std::string(file.map(offset, bytes).data(), bytes), content.substr(offset, bytes));
  }
}

TEST(MappedFile, WritingToARegionStaysPrivate) {
  const TempFolder folder;
  const fs::path path = folder.write("f", "content");
  const MappedFile file = MappedFile::open(path);
  const MappedRegion region = file.map(0, 7), other = file.map(0, 7);
  region.data()[0] = 'X';
  EXPECT_EQ(std::string(other.data(), 7), "content");
  EXPECT_EQ(bytes_of(path), "content");
}

TEST(MappedFile, RegionOutlivesTheFileAndItsReplacement) {
  const TempFolder folder;
  const fs::path path = folder.write("f", "old content");
  auto file = std::make_unique<MappedFile>(MappedFile::open(path));
  const MappedRegion region = file->map(4, 7);
  folder.write("g", "completely new");
  fs::rename(folder / "g", path);
  EXPECT_NO_THROW(file->check_unchanged());
  file.reset();
  EXPECT_EQ(std::string(region.data(), 7), "content");
}

TEST(MappedFile, SaysWhenTheSystemRefuses) {
  const TempFolder folder;
  EXPECT_ERROR(MappedFile::open(folder / std::string(300, 'n')), ExitCode::io, "", "File name too long");
  EXPECT_ERROR(MappedFile::open(folder / "absent"), ExitCode::not_found, "", "there is no file ");
  const MappedFile memory = MappedFile::open("/proc/self/mem");  // a regular file whose first page cannot be read
  char byte = 0;
  EXPECT_ERROR(memory.read(0, &byte, 1), ExitCode::io, "", "cannot read /proc/self/mem: Input/output error");
  EXPECT_ERROR(memory.map(0, 1), ExitCode::io, "", "cannot map /proc/self/mem: No such device");
#ifdef MADV_POPULATE_READ
  const MappedFile small = MappedFile::open(folder.write("f", "content"));
  EXPECT_ERROR(small.map(1 << 20, 1), ExitCode::io, "", "the disk reports an error");  // no page is there to be read
#endif
}

TEST(MappedFile, RefusesWhatIsNotARegularFile) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(MappedFile::open(folder / "pipe"), ExitCode::bad_input, "ST_NOT_REGULAR",
               "pipe is a named pipe, not a file");
  EXPECT_ERROR(MappedFile::open(folder.path()), ExitCode::bad_input, "ST_NOT_REGULAR", "is a folder, not a file");
  EXPECT_ERROR(MappedFile::open("/dev/null"), ExitCode::bad_input, "ST_NOT_REGULAR",
               "/dev/null is a device, not a file");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (folder / "s").c_str(), sizeof address.sun_path - 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_ERROR(MappedFile::open(folder / "s"), ExitCode::bad_input, "ST_NOT_REGULAR", "is a socket");
  ::close(fd);
  EXPECT_ERROR(MappedFile::open(folder / "gone"), ExitCode::not_found, "",
               "there is no file " + (folder / "gone").string());
  folder.write("f", "x");
  EXPECT_ERROR(MappedFile::open(folder / "f/g"), ExitCode::not_found, "", "there is no file");
}

TEST(MappedFile, NoticesCutGrownAndRewrittenFiles) {
  const TempFolder folder;
  const fs::path path = folder.write("f", std::string(10'000, 'x'));
  char byte = 0;
  const MappedFile cut = MappedFile::open(path);
  ASSERT_EQ(::truncate(path.c_str(), 5'000), 0);
  EXPECT_ERROR(cut.read(6'000, &byte, 1), ExitCode::bad_input, "ST_CHANGED",
               "ends at byte 6000, it had 10000 bytes when it was opened");
  EXPECT_ERROR(cut.read(0, &byte, 1), ExitCode::bad_input, "ST_CHANGED",
               "it had 10000 bytes when it was opened and has 5000 now");
  EXPECT_ERROR(cut.map(0, 1), ExitCode::bad_input, "ST_CHANGED", "has 5000 now");

  const MappedFile grown = MappedFile::open(path);
  std::ofstream(path, std::ios::app) << "y";
  EXPECT_ERROR(grown.check_unchanged(), ExitCode::bad_input, "ST_CHANGED", "has 5001 now");

  const MappedFile rewritten = MappedFile::open(path);
  const timespec times[2] = {{0, UTIME_OMIT}, {1'000'000'000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_ERROR(rewritten.map(0, 1), ExitCode::bad_input, "ST_CHANGED", "it was modified after it was opened");
}

TEST(MappedFile, KnowsTheSameFileUnderAnotherName) {
  const TempFolder folder;
  folder.write("a", "x");
  fs::create_hard_link(folder / "a", folder / "b");
  folder.write("c", "x");
  EXPECT_TRUE(MappedFile::open(folder / "a").same_file(MappedFile::open(folder / "b")));
  EXPECT_FALSE(MappedFile::open(folder / "a").same_file(MappedFile::open(folder / "c")));
}

TEST(MappedFile, MovesLeaveNothingOpen) {
  const TempFolder folder;
  MappedFile file = MappedFile::open(folder.write("f", "x"));
  const MappedFile moved = std::move(file);
  EXPECT_TRUE(moved.is_open());
  EXPECT_FALSE(file.is_open());
}

}  // namespace
}  // namespace trainer::weights
