/// @file Weights that are fp8 in the file: every layout of scales, taken bit for bit, and what is refused.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <trainer/sdk/eight_bit_weights.hpp>
#include <trainer/sdk/error.hpp>

#include <limits>
#include <support/parity.hpp>

#include "numbers.hpp"

namespace trainer::fp8 {
namespace {

using namespace eight_bits;

using testing::random_matrix;

constexpr int64_t kOut = 256, kIn = 384;

at::Tensor fp8_values(int64_t out = kOut, int64_t in = kIn) {
  return (random_matrix(out, in) * 50).clamp(-448, 448).to(at::kFloat8_e4m3fn);
}
at::Tensor text(const std::string& letters) {
  return at::tensor(std::vector<int64_t>(letters.begin(), letters.end())).to(at::kByte);
}

std::optional<Packed> read(const NamedTensors& tensors) {
  test::MemorySource source(tensors, "model.safetensors");
  return stored_fp8(source, "a.weight");
}
std::string refusal(const NamedTensors& tensors, const std::string& code = "FP8_SCALE") {
  try {
    read(tensors);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "accepted";
}

/// The values are those of the file and the expanded weight is their product with `factor` [out, in].
void expect_taken(const NamedTensors& tensors, const at::Tensor& factor) {
  const std::optional<Packed> packed = read(tensors);
  ASSERT_TRUE(packed);
  const at::Tensor& values = tensors.find("a.weight")->second;
  EXPECT_EQ(packed->values.scalar_type(), values.scalar_type());
  EXPECT_TRUE(test::same_bits(packed->values.view(at::kByte), values.view(at::kByte)));
  EXPECT_FALSE(packed->values.is_alias_of(values)) << "the source may be a mapped file";
  EXPECT_TRUE(test::same_bits(dequantize(*packed, at::kFloat), (values.to(at::kFloat) * factor)));
}

TEST(StoredFp8, OtherDtypesAreLeftAlone) {
  EXPECT_FALSE(read({{"a.weight", random_matrix(4, 4)}}));
  EXPECT_FALSE(read({{"a.weight", random_matrix(4, 4).to(at::kBFloat16)}}));
}

TEST(StoredFp8, WithoutScaleItIsOne) {
  expect_taken({{"a.weight", fp8_values()}, {"b.weight_scale", at::ones({1})}}, at::ones({1, 1}));
  expect_taken({{"a.weight", fp8_values().to(at::kFloat8_e5m2)}}, at::ones({1, 1}));
}

TEST(StoredFp8, OneScale) {
  for (const char* name : {"a.weight_scale", "a.scale_weight", "a.weight_scale_inv"})
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {1}, {1, 1}, {1, 1, 1}})
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
        expect_taken({{"a.weight", fp8_values()}, {name, at::full(shape, 0.0123, dtype)}},
                     at::full({1, 1}, 0.0123, dtype).to(at::kFloat));
}

TEST(StoredFp8, OneScalePerChannel) {
  const at::Tensor scale = random_matrix(kOut, 1, 4).abs();
  expect_taken({{"a.weight", fp8_values()}, {"a.weight_scale", scale}}, scale);
  expect_taken({{"a.weight", fp8_values()}, {"a.weight_scale", scale.view(-1)}}, scale);
  expect_taken({{"a.weight", fp8_values()}, {"a.scale_weight", scale.view({kOut, 1, 1})}}, scale);
}

TEST(StoredFp8, BlocksAlongTheInput) {
  const at::Tensor scale = random_matrix(kOut, kIn / 64, 4).abs();
  const at::Tensor factor = scale.repeat_interleave(64, 1);
  expect_taken({{"a.weight", fp8_values()}, {"a.scale_weight", scale.unsqueeze(2)}}, factor);
  expect_taken({{"a.weight", fp8_values()}, {"a.weight_scale", scale}}, factor);
}

/// Tiles of 128 x 128, the last row and column of tiles cut.
TEST(StoredFp8, Tiles) {
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{256, 384}, {200, 300}, {129, 192}, {64, 64}}) {
    const at::Tensor scale = random_matrix((out + 127) / 128, (in + 127) / 128, 4).abs();
    const at::Tensor factor =
        scale.repeat_interleave(128, 0).narrow(0, 0, out).repeat_interleave(128, 1).narrow(1, 0, in);
    expect_taken({{"a.weight", fp8_values(out, in)}, {"a.weight_scale_inv", scale}}, factor);
  }
}

TEST(StoredFp8, ScalesOfActivationsDoNotMatter) {
  expect_taken(
      {{"a.weight", fp8_values()}, {"a.weight_scale", at::full({}, 0.5)}, {"a.input_scale", at::full({}, 9.0)}},
      at::full({1, 1}, 0.5F));
}

TEST(StoredFp8, NotesOfComfy) {
  const NamedTensors plain{{"a.weight", fp8_values()}, {"a.weight_scale", at::full({}, 0.5)}};
  const auto with = [&](const at::Tensor& note) {
    NamedTensors tensors = plain;
    tensors["a.comfy_quant"] = note;
    return tensors;
  };
  expect_taken(with(text(R"({"format": "float8_e4m3fn", "full_precision_matrix_mult": true})")),
               at::full({1, 1}, 0.5F));
  EXPECT_EQ(refusal(with(text(R"({"format": "float8_e4m3fn", "convrot": true})"))),
            "model.safetensors: tensor \"a.comfy_quant\" describes a packing that is not plain fp8 with a scale: "
            "\"convrot = true\"");
  EXPECT_NE(refusal(with(text(R"({"format": "mxfp8"})"))).find("mxfp8"), std::string::npos);
  EXPECT_NE(refusal(with(text("{"))).find("is not JSON"), std::string::npos);
  EXPECT_NE(refusal(with(text(R"({"x": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}")))
                .find("is longer than a note"),
            std::string::npos);
  EXPECT_NE(refusal(with(at::ones({3}))).find("JSON text in bytes"), std::string::npos);
}

TEST(StoredFp8, Refusals) {
  const at::Tensor values = fp8_values();
  EXPECT_EQ(refusal({{"a.weight", values}, {"a.weight_scale", at::ones({1})}, {"a.scale_weight", at::ones({1})}}),
            "model.safetensors: tensor \"a.scale_weight\" and \"a.weight_scale\" both scale one weight");
  EXPECT_EQ(refusal({{"a.weight", random_matrix(4, 4).to(at::kBFloat16)}, {"a.weight_scale", at::ones({1})}}),
            "model.safetensors: tensor \"a.weight_scale\" scales a weight that is BFloat16, not fp8: this packing is "
            "not known here");
  EXPECT_EQ(refusal({{"a.weight", values}, {"a.weight_scale", at::ones({kOut - 1})}}),
            "model.safetensors: tensor \"a.weight_scale\" of shape [255] scales no weight of shape [256, 384] in a "
            "layout known here (one, one an output channel, blocks along the input, tiles)");
  EXPECT_NE(refusal({{"a.weight", values}, {"a.weight_scale", at::ones({2, 2, 2})}}), "accepted");
  for (const std::vector<int64_t>& groups_of_rows :
       {std::vector<int64_t>{kOut / 4}, {kOut / 4, 1}, {kOut / 4, kIn / 64}})
    for (const char* name : {"a.weight_scale", "a.scale_weight", "a.weight_scale_inv"})
      EXPECT_NE(refusal({{"a.weight", values}, {name, at::ones(groups_of_rows)}}), "accepted")
          << name << at::IntArrayRef(groups_of_rows);
  EXPECT_NE(refusal({{"a.weight", values}, {"a.weight_scale", at::ones({0})}}), "accepted");
  EXPECT_NE(refusal({{"a.weight", values}, {"a.weight_scale", at::ones({kOut, kIn / 32}).to(at::kFloat8_e8m0fnu)}})
                .find("is Float8_e8m0fnu; scales are fp32, bf16 or fp16"),
            std::string::npos);
  for (const float bad : {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(
        refusal({{"a.weight", values}, {"a.weight_scale", at::full({1}, bad)}}),
        "model.safetensors: tensor \"a.weight_scale\" holds negative numbers, NaN or infinity; scales are positive");
  at::Tensor damaged = values.clone();
  damaged.view(at::kByte)[255][383] = 0xff;
  EXPECT_NE(refusal({{"a.weight", damaged}}, "FP8_NOT_FINITE").find("tensor \"a.weight\" holds NaN"),
            std::string::npos);
}

}  // namespace
}  // namespace trainer::fp8
