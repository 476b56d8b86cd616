#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <base/hash.hpp>
#include <weights/mapped_file.hpp>
#include <weights/safetensors_header.hpp>
#include <weights/safetensors_writer.hpp>

#include <algorithm>

#include "helpers.hpp"
#include "reference_files.hpp"

namespace trainer::weights {
namespace {

namespace fs = std::filesystem;

std::vector<TensorBytes> views(const std::vector<Stored>& tensors) {
  std::vector<TensorBytes> views;
  for (const Stored& tensor : tensors) views.push_back({tensor.spec, tensor.bytes.data()});
  return views;
}

TEST(Writer, WritesTheBytesOfTheReference) {
  const TempFolder folder;
  for (const ReferenceFile& file : reference_files()) {
    const std::string reference = bytes_of(data_file("safetensors/" + file.name + ".safetensors"));
    ASSERT_FALSE(reference.empty()) << file.name;
    std::vector<TensorBytes> tensors = views(file.tensors);
    const WrittenFile written = write_safetensors_bytes(folder / "f", tensors, file.metadata, {true, true});
    EXPECT_EQ(bytes_of(folder / "f"), reference) << file.name;
    EXPECT_EQ(written.bytes, reference.size());
    EXPECT_EQ(written.xxh128, xxh128(reference));
    EXPECT_EQ(written.sha256, sha256(reference));
    std::reverse(tensors.begin(), tensors.end());  // any order gives the same file
    EXPECT_EQ(write_safetensors_bytes(folder / "g", tensors, file.metadata).xxh128, "");
    EXPECT_EQ(bytes_of(folder / "g"), reference) << file.name;
  }
}

TEST(Writer, ParserReadsBackEntriesAndMetadata) {
  for (const ReferenceFile& file : reference_files()) {
    const std::string bytes = bytes_of(data_file("safetensors/" + file.name + ".safetensors"));
    const Header header = parse_header(bytes, bytes.size(), file.name);
    EXPECT_EQ(header.metadata, file.metadata);
    ASSERT_EQ(header.entries.size(), file.tensors.size());
    EXPECT_EQ(header.data_offset % 8, 0u);
    for (const Stored& tensor : file.tensors) {
      const TensorEntry* entry = header.find(tensor.spec.name);
      ASSERT_NE(entry, nullptr) << tensor.spec.name;
      EXPECT_EQ(entry->dtype, tensor.spec.dtype);
      EXPECT_EQ(entry->shape, tensor.spec.shape);
      EXPECT_EQ(bytes.substr(header.data_offset + entry->begin, entry->bytes()), tensor.bytes);
    }
  }
}

TEST(Writer, StreamsInPieces) {
  const TempFolder folder;
  const ReferenceFile file = reference_files().back();
  std::vector<TensorSpec> specs;
  for (const Stored& tensor : file.tensors) specs.push_back(tensor.spec);
  SafetensorsWriter writer(folder / "f", specs, file.metadata);
  for (const TensorSpec& spec : writer.specs()) {
    const auto tensor = std::find_if(file.tensors.begin(), file.tensors.end(),
                                     [&](const Stored& s) { return s.spec.name == spec.name; });
    for (const char& byte : tensor->bytes) writer.append(&byte, 1);
  }
  EXPECT_FALSE(fs::exists(folder / "f"));
  writer.commit();
  EXPECT_EQ(bytes_of(folder / "f"), bytes_of(data_file("safetensors/lora.safetensors")));
  EXPECT_EQ(folder.count(), 1u);
}

TEST(Writer, RefusesTooMuchAndTooLittleData) {
  const TempFolder folder;
  const std::string data(16, 'x');
  {
    SafetensorsWriter writer(folder / "f", {{"a", Dtype::f32, {2}}}, {});
    EXPECT_ERROR(writer.append(data.data(), 9), ExitCode::failed, "", "more data than the header describes");
    writer.append(data.data(), 7);
    EXPECT_ERROR(writer.commit(), ExitCode::failed, "", "was given 71 of 72 bytes");
  }
  EXPECT_EQ(folder.count(), 0u);
}

TEST(Writer, RefusesWhatReadersWouldRefuse) {
  const TempFolder folder;
  const TensorSpec good{"a", Dtype::u8, {1}};
  const auto write = [&](std::vector<TensorSpec> specs, const Metadata& metadata = {}) {
    SafetensorsWriter(folder / "f", std::move(specs), metadata);
  };
  EXPECT_ERROR(write({good, good}), ExitCode::bad_input, "ST_DUP_KEY", "tensor \"a\" appears twice");
  EXPECT_ERROR(write({{"", Dtype::u8, {1}}}), ExitCode::bad_input, "ST_NAME", "has 0 bytes");
  EXPECT_ERROR(write({{"a\nb", Dtype::u8, {1}}}), ExitCode::bad_input, "ST_NAME", "control character");
  EXPECT_ERROR(write({{"a\xFF", Dtype::u8, {1}}}), ExitCode::bad_input, "ST_UTF8", "is not UTF-8");
  EXPECT_ERROR(write({good}, {{"k", "\xC3"}}), ExitCode::bad_input, "ST_UTF8", "is not UTF-8");
  EXPECT_ERROR(write({{"__metadata__", Dtype::u8, {1}}}), ExitCode::bad_input, "ST_METADATA_TYPE",
               "metadata \"shape\" must be a string");
  EXPECT_ERROR(write({{"a", Dtype::f4, {3}}}), ExitCode::bad_input, "ST_SUBBYTE", "F4 [3] cannot be stored");
  EXPECT_ERROR(write({{"a", Dtype::f64, {INT64_MAX, 4}}}), ExitCode::bad_input, "ST_OVERFLOW", "cannot be stored");
  EXPECT_ERROR(write({{"a", Dtype::u8, {-1}}}), ExitCode::failed, "", "has shape [-1]");
  EXPECT_ERROR(write({good}, {{"k", std::string(17u << 20, 'v')}}), ExitCode::bad_input, "ST_LIMIT",
               "more than 16777216 bytes");
  EXPECT_EQ(folder.count(), 0u);
}

TEST(Writer, KeepsTheOldFileUntilCommitAndForOpenReaders) {
  const TempFolder folder;
  const fs::path path = folder.write("f", std::string(100, 'o'));
  const MappedFile reader = MappedFile::open(path);
  const MappedRegion region = reader.map(0, 100);
  {
    AtomicFile abandoned(path);
    abandoned.write("new", 3);
  }
  EXPECT_EQ(bytes_of(path), std::string(100, 'o'));
  EXPECT_EQ(folder.count(), 1u);
  AtomicFile file(path);
  file.write("ne", 2);
  file.write("w", 1);
  EXPECT_EQ(file.written(), 3u);
  EXPECT_EQ(bytes_of(path), std::string(100, 'o'));
  file.commit();
  EXPECT_EQ(bytes_of(path), "new");
  EXPECT_EQ(folder.count(), 1u);
  EXPECT_EQ(std::string(region.data(), 100), std::string(100, 'o'));
  EXPECT_NO_THROW(reader.check_unchanged());
}

TEST(Writer, NamesTheFolderItCannotWriteTo) {
  const TempFolder folder;
  EXPECT_ERROR(AtomicFile(folder / "gone/f"), ExitCode::io, "",
               "cannot create a file beside " + (folder / "gone/f").string());
  fs::create_directory(folder / "d");
  EXPECT_ERROR(AtomicFile(folder / "d"), ExitCode::io, "",
               "cannot replace " + (folder / "d").string() + ": it is a folder");
  AtomicFile file(folder / "e");
  fs::create_directory(folder / "e");  // meanwhile
  EXPECT_ERROR(file.commit(), ExitCode::io, "", "cannot replace");
}

/// A file size limit stands in for a full disk: write fails after a part of the data is on disk.
TEST(Writer, FailedWriteLeavesOldFileAndNoTemporaryOne) {
  const TempFolder folder;
  const fs::path path = folder.write("f", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 0;
    try {
      AtomicFile file(path);
      file.write(std::string(5000, 'n').data(), 5000);
      file.commit();
    } catch (const Error& error) {
      code = error.exit_code() == ExitCode::io && std::string(error.what()).find("cannot write") == 0 ? 7 : 8;
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(bytes_of(path), "old");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(Writer, ReservingMoreThanTheDiskHasFailsAtOnce) {
  const TempFolder folder;
  AtomicFile file(folder / "f");
  try {
    file.reserve(uint64_t{1} << 60);
  } catch (const Error& error) {  // where the file system supports it
    EXPECT_EQ(error.exit_code(), ExitCode::io);
    EXPECT_NE(std::string(error.what()).find("cannot reserve 1152921504606846976 bytes for"), std::string::npos)
        << error.what();
  }
  file.reserve(0);
  file.write("x", 1);
  file.commit();
  EXPECT_EQ(bytes_of(folder / "f"), "x");
}

TEST(StreamHash, EqualsTheHashOfTheWhole) {
  StreamHash hash({true, true}), none({});
  const std::string data(100'000, 'q');
  hash.add(data.data(), 1);
  hash.add(data.data(), 0);
  hash.add(data.data() + 1, data.size() - 1);
  none.add(data.data(), data.size());
  EXPECT_EQ(hash.xxh128(), xxh128(data));
  EXPECT_EQ(hash.sha256(), sha256(data));
  EXPECT_EQ(none.xxh128() + none.sha256(), "");
}

}  // namespace
}  // namespace trainer::weights
