#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <weights/convert.hpp>
#include <weights/tensor_file.hpp>
#include <weights/write.hpp>

#include <limits>

#include "helpers.hpp"
#include "reference_files.hpp"

namespace trainer::weights {
namespace {

namespace fs = std::filesystem;

TEST(WriteTensors, EqualsTheReferenceForEveryDtype) {
  const TempFolder folder;
  for (const ReferenceFile& reference : reference_files()) {
    const fs::path original = data_file("safetensors/" + reference.name + ".safetensors");
    const TensorFile file(original);
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const Stored& stored : reference.tensors) tensors.emplace_back(stored.spec.name, file.read(stored.spec.name));
    const WrittenFile written = write_safetensors(folder / "f", tensors, file.metadata(), {.sha256 = true});
    EXPECT_EQ(bytes_of(folder / "f"), bytes_of(original)) << reference.name;
    EXPECT_EQ(written.sha256.size(), 64u);
    EXPECT_EQ(written.bytes, fs::file_size(original));
  }
}

TEST(WriteTensors, TakesAnyStridesAndViews) {
  const TempFolder folder;
  const at::Tensor base = at::arange(12, at::kFloat).view({3, 4});
  const at::Tensor complex = at::complex(at::ones({2}), at::ones({2}));
  write_safetensors(folder / "f", {{"t", base.t()},
                                   {"s", base.slice(1, 0, 4, 2)},
                                   {"e", base.narrow(0, 0, 1).expand({3, 4})},
                                   {"g", at::ones({2}).requires_grad_()},
                                   {"c", complex.conj()},
                                   {"r", at::tensor(2.0f).squeeze()},
                                   {"z", at::empty({0, 3})}});
  const TensorFile file(folder / "f");
  EXPECT_TRUE(at::equal(file.read("t"), base.t()));
  EXPECT_TRUE(at::equal(file.read("s"), base.slice(1, 0, 4, 2)));
  EXPECT_TRUE(at::equal(file.read("e"), base.narrow(0, 0, 1).expand({3, 4})));
  EXPECT_TRUE(at::equal(file.read("g"), at::ones({2})));
  EXPECT_TRUE(at::equal(file.read("c"), at::complex(at::ones({2}), -at::ones({2}))));
  EXPECT_EQ(file.read("r").dim(), 0);
  EXPECT_EQ(file.read("z").sizes().vec(), (std::vector<int64_t>{0, 3}));
}

TEST(WriteTensors, RefusesWhatTheFormatCannotHold) {
  const TempFolder folder;
  const fs::path path = folder.write("f", "old");
  const auto write = [&](const at::Tensor& tensor) { return write_safetensors(path, {{"t", tensor}}); };
  EXPECT_ERROR(write(at::zeros({1}, at::kComplexDouble)), ExitCode::bad_input, "ST_DTYPE_UNSUPPORTED",
               "tensor \"t\" (ComplexDouble, cpu)");
  EXPECT_ERROR(write(at::empty({1}, at::TensorOptions().device(at::kMeta))), ExitCode::bad_input,
               "ST_DTYPE_UNSUPPORTED", "meta");
  EXPECT_ERROR(write(at::zeros({2, 2}).to_sparse()), ExitCode::bad_input, "ST_DTYPE_UNSUPPORTED", "cannot be stored");
  EXPECT_ERROR(write(at::Tensor()), ExitCode::failed, "", "tensor \"t\" to be written is undefined");
  EXPECT_ERROR(write_safetensors(path, {{"t", at::zeros({1})}, {"t", at::zeros({1})}}), ExitCode::bad_input,
               "ST_DUP_KEY", "\"t\" appears twice");
  EXPECT_EQ(bytes_of(path), "old");
  EXPECT_EQ(folder.count(), 1u);
}

/// Writing over the file the tensors are views of: two loaders got zeros from this (safetensors issue 762).
TEST(WriteTensors, OverTheFileThatTheTensorsAreMappedFrom) {
  const TempFolder folder;
  const at::Tensor values = at::arange(1 << 19, at::kFloat);
  write_safetensors(folder / "f", {{"t", values}});
  const TensorFile file(folder / "f", {Profile::strict, ReadMode::map});
  const at::Tensor mapped = file.read("t");
  write_safetensors(folder / "f", {{"t", mapped}, {"u", mapped.slice(0, 0, 3)}}, {{"changed", "metadata"}});
  EXPECT_TRUE(at::equal(mapped, values));
  EXPECT_TRUE(at::equal(file.read("t"), values));  // the old file, still open
  const TensorFile again(folder / "f");
  EXPECT_TRUE(at::equal(again.read("t"), values));
  EXPECT_EQ(again.metadata().at("changed"), "metadata");
  EXPECT_EQ(again.names().size(), 2u);
}

TEST(WriteTensors, SameInputSameBytes) {
  const TempFolder folder;
  const at::Tensor a = at::ones({3}), b = at::zeros({2}, at::kBFloat16);
  write_safetensors(folder / "1", {{"a", a}, {"b", b}}, {{"x", "1"}, {"y", "2"}});
  write_safetensors(folder / "2", {{"b", b}, {"a", a}}, {{"y", "2"}, {"x", "1"}});
  EXPECT_EQ(bytes_of(folder / "1"), bytes_of(folder / "2"));
}

}  // namespace
}  // namespace trainer::weights
