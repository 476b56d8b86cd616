#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <weights/convert.hpp>
#include <weights/tensor_file.hpp>
#include <weights/write.hpp>

#include <algorithm>
#include <memory>

#include "corpus.hpp"
#include "helpers.hpp"
#include "reference_files.hpp"

namespace trainer::weights {
namespace {

namespace fs = std::filesystem;

std::string raw(const at::Tensor& tensor) { return {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()}; }

TEST(TensorFile, ReadsTheReferenceFilesInEveryMode) {
  for (const ReferenceFile& reference : reference_files()) {
    for (const ReadMode mode : {ReadMode::automatic, ReadMode::copy, ReadMode::map}) {
      const TensorFile file(data_file("safetensors/" + reference.name + ".safetensors"), {Profile::strict, mode});
      EXPECT_EQ(file.metadata(), reference.metadata);
      EXPECT_EQ(file.names().size(), reference.tensors.size());
      for (const Stored& stored : reference.tensors) {
        const TensorInfo* info = file.find(stored.spec.name);
        ASSERT_NE(info, nullptr) << stored.spec.name;
        EXPECT_EQ(info->name, stored.spec.name);
        EXPECT_EQ(info->shape, stored.spec.shape);
        EXPECT_EQ(info->dtype, scalar_type(stored.spec.dtype));
        const at::Tensor tensor = file.read(stored.spec.name);
        EXPECT_EQ(tensor.sizes().vec(), stored.spec.shape);
        EXPECT_EQ(tensor.scalar_type(), info->dtype);
        EXPECT_TRUE(tensor.is_contiguous() && tensor.device().is_cpu());
        EXPECT_EQ(raw(tensor), stored.bytes) << stored.spec.name;
      }
    }
  }
}

TEST(TensorFile, NamesAreSortedAndMisspeltOnesGetAHint) {
  const TensorFile file(data_file("safetensors/lora.safetensors"));
  const std::vector<std::string> names = file.names();
  EXPECT_EQ(names.front(), "transformer.transformer_blocks.0.attn.to_q.lora_A.weight");
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(file.find("transformer"), nullptr);
  EXPECT_ERROR(file.read("transformer.transformer_blocks.0.attn.to_q.lora_A.weigth"), ExitCode::bad_input,
               "ST_NO_TENSOR", "(did you mean \"transformer.transformer_blocks.0.attn.to_q.lora_A.weight\"");
}

class Rows : public testing::TestWithParam<ReadMode> {};

TEST_P(Rows, AreSlicesOfTheTensor) {
  const TempFolder folder;
  const at::Tensor table = at::arange(30, at::kFloat).view({5, 3, 2});
  write_safetensors(folder / "f",
                    {{"t", table}, {"scalar", at::tensor(1.0f).squeeze()}, {"none", at::arange(0).view({0, 4})}});
  const TensorFile file(folder / "f", {Profile::strict, GetParam()});
  for (int64_t begin = 0; begin <= 5; ++begin) {
    for (int64_t end = begin; end <= 5; ++end) {
      EXPECT_TRUE(at::equal(file.read_rows("t", begin, end), table.slice(0, begin, end))) << begin << " " << end;
    }
  }
  EXPECT_EQ(file.read_rows("none", 0, 0).sizes().vec(), (std::vector<int64_t>{0, 4}));
  for (const auto& [begin, end] : {std::pair{-1, 2}, {3, 2}, {0, 6}, {6, 6}}) {
    EXPECT_ERROR(file.read_rows("t", begin, end), ExitCode::bad_input, "ST_ROWS",
                 "tensor \"t\" of shape [5, 3, 2] has no rows");
  }
  EXPECT_ERROR(file.read_rows("scalar", 0, 1), ExitCode::bad_input, "ST_ROWS", "of shape [] has no rows 0 to 1");
  EXPECT_ERROR(file.read_rows("x", 0, 1), ExitCode::bad_input, "ST_NO_TENSOR", "no tensor \"x\"");
}
INSTANTIATE_TEST_SUITE_P(Modes, Rows, testing::Values(ReadMode::copy, ReadMode::map, ReadMode::automatic));

TEST(TensorFile, MapsLargeTensorsAndCopiesSmallOnes) {
  const TempFolder folder;
  const at::Tensor large = at::arange(1 << 19, at::kFloat), small = at::arange(100, at::kFloat);
  write_safetensors(folder / "f", {{"large", large}, {"small", small}});
  at::Tensor mapped, copied;
  {
    const TensorFile file(folder / "f");
    mapped = file.read("large");
    copied = file.read("small");
    // Two copies of a mapped tensor would share pages of the file; two copied ones never share an address either,
    // so look at where the data lies within a page: a mapping keeps the offset of the file.
    const TensorEntry* entry = file.header().find("large");
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(mapped.data_ptr()) % page, (file.header().data_offset + entry->begin) % page);
  }
  fs::remove(folder / "f");  // tensors outlive the file object and the file's name
  EXPECT_TRUE(at::equal(mapped, large));
  EXPECT_TRUE(at::equal(copied, small));
}

TEST(TensorFile, WritingToAMappedTensorDoesNotReachTheFile) {
  const TempFolder folder;
  const at::Tensor ones = at::arange(1, 9, at::kFloat);
  write_safetensors(folder / "f", {{"t", ones}});
  const TensorFile file(folder / "f", {Profile::strict, ReadMode::map});
  file.read("t").zero_();
  EXPECT_TRUE(at::equal(file.read("t"), ones));
  EXPECT_TRUE(at::equal(TensorFile(folder / "f").read("t"), ones));
}

TEST(TensorFile, UnalignedTensorsAreCopied) {
  const TempFolder folder;
  const float values[2] = {1.5f, -2.0f};
  std::string data(3, 'x');
  data.append(reinterpret_cast<const char*>(values), sizeof values);
  std::string header =
      "{" + corpus::entry("pad", "U8", "[3]", 0, 3) + "," + corpus::entry("t", "F32", "[2]", 3, 11) + "}";
  for (std::size_t i = 0; i < sizeof(float); ++i, header += ' ') {  // every place within four bytes
    const TensorFile file(folder.write("f", corpus::with_length(header.size(), header + data)),
                          {Profile::strict, ReadMode::map});
    const at::Tensor tensor = file.read("t");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % sizeof(float), 0u);
    EXPECT_TRUE(at::equal(tensor, at::tensor({1.5f, -2.0f})));
  }
}

TEST(TensorFile, ATensorWithoutBytesAtThePageOfItsFileIsNotMapped) {
  const TempFolder folder;
  std::string header = "{" + corpus::entry("none", "F32", "[0,4]", 0, 0) + "}";
  header.resize(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) - 8, ' ');
  const TensorFile file(folder.write("f", corpus::with_length(header.size(), header)),
                        {Profile::strict, ReadMode::map});
  EXPECT_EQ(file.read("none").sizes().vec(), (std::vector<int64_t>{0, 4}));
}

TEST(TensorFile, BoolsOtherThan0And1) {
  const TempFolder folder;
  const std::string header = "{" + corpus::entry("b", "BOOL", "[4]", 0, 4) + "}";
  const auto with = [&](const std::string& bytes) {
    return folder.write("f", corpus::with_length(header.size(), header + bytes));
  };
  EXPECT_ERROR(TensorFile(with({"\0\1\2\0", 4})).read("b"), ExitCode::bad_input, "ST_BOOL",
               "tensor \"b\": element 2 is 2; a BOOL is 0 or 1");
  EXPECT_ERROR(TensorFile(with({"\x80\1\0\0", 4})).read("b"), ExitCode::bad_input, "ST_BOOL", "element 0 is 128");
  EXPECT_ERROR(TensorFile(with({"\0\1\1\xFF", 4})).read("b"), ExitCode::bad_input, "ST_BOOL", "element 3 is 255");
  for (const char bad : {'\x02', '\x80', '\xFF'})
    EXPECT_EQ(raw(TensorFile(with(std::string("\0\1", 2) + bad + '\0'), {Profile::compat, ReadMode::map}).read("b")),
              std::string("\0\1\1\0", 4));
}

TEST(TensorFile, TypesThatLibTorchLacksAreNamedNotReinterpreted) {
  const TempFolder folder;
  const auto with = [&](const std::string& dtype, uint64_t bytes) {
    const std::string json = "{" + corpus::entry("a", dtype, "[8]", 0, bytes) + "," +
                             corpus::entry("b", "U8", "[2]", bytes, bytes + 2) + "}";
    const TensorFile file(folder.write("f", corpus::file(json, static_cast<std::size_t>(bytes) + 2)));
    EXPECT_EQ(file.find("a")->dtype, at::ScalarType::Undefined);
    EXPECT_EQ(file.read("b").numel(), 2);  // the rest of the file stays usable
    return file.read("a");
  };
  const std::string none = ", which LibTorch has no type for";
  EXPECT_ERROR(with("F4", 4), ExitCode::bad_input, "ST_DTYPE_UNSUPPORTED", "\"a\" has dtype F4" + none);
  EXPECT_ERROR(with("F6_E2M3", 6), ExitCode::bad_input, "ST_DTYPE_UNSUPPORTED", "\"a\" has dtype F6_E2M3" + none);
  EXPECT_ERROR(with("F6_E3M2", 6), ExitCode::bad_input, "ST_DTYPE_UNSUPPORTED", "\"a\" has dtype F6_E3M2" + none);
}

TEST(TensorFile, NoticesAFileThatChangesUnderIt) {
  const TempFolder folder;
  write_safetensors(folder / "f", {{"t", at::arange(1000, at::kFloat)}});
  const TensorFile copying(folder / "f", {Profile::strict, ReadMode::copy}),
      mapping(folder / "f", {Profile::strict, ReadMode::map});
  ASSERT_EQ(::truncate((folder / "f").c_str(), 1000), 0);
  EXPECT_ERROR(copying.read("t"), ExitCode::bad_input, "ST_CHANGED", "another program cut it");
  EXPECT_ERROR(mapping.read("t"), ExitCode::bad_input, "ST_CHANGED", "has 1000 now");
  EXPECT_ERROR(TensorFile(folder / "f"), ExitCode::bad_input, "ST_TRUNCATED_DATA", (folder / "f").string() + ": ");
}

TEST(TensorFile, WholeCorpusFromDisk) {
  const TempFolder folder;
  for (const corpus::Case& example : corpus::framing_cases()) {
    const fs::path path = folder.write("f", example.bytes);
    EXPECT_ERROR(TensorFile(path, {example.profile, ReadMode::automatic}), ExitCode::bad_input, example.code,
                 example.piece);
  }
}

}  // namespace
}  // namespace trainer::weights
