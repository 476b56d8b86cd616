/// @file The builder that turns a weight source into layers.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <assembly/model_builder.hpp>
#include <support/errors.hpp>
#include <support/parity.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::execution {
namespace {

NamedTensors weights() {
  return {{"attn.to_q.weight", at::arange(6, at::kFloat).view({2, 3}) / 3},
          {"attn.to_q.bias", at::ones({2}, at::kBFloat16)},
          {"norm.weight", at::arange(4, at::kFloat) / 7}};
}

assembly::BuildOptions options(at::ScalarType dtype, bool trained = false) {
  assembly::BuildOptions made;
  made.dtype = dtype;
  made.trained = trained;
  return made;
}

/// Refuses to be read.
class HeadersOnly final : public WeightSource {
 public:
  explicit HeadersOnly(WeightSource& inner) : inner_(inner) {}
  [[nodiscard]] std::vector<std::string> names() const override { return inner_.names(); }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override { return inner_.find(name); }
  [[nodiscard]] at::Tensor read(std::string_view) override { throw std::runtime_error("data was read"); }
  [[nodiscard]] std::string describe() const override { return inner_.describe(); }
  [[nodiscard]] std::string identity() const override { return inner_.identity(); }

 private:
  WeightSource& inner_;
};

/// Packs every layer whose name ends as given.
class PackSome final : public WeightFormat {
 public:
  PackSome(std::string ending, int64_t bytes) : ending_(std::move(ending)), bytes_(bytes) {}
  std::unique_ptr<FrozenWeight> pack(const LinearState& linear, const std::string& name, WeightSource& source,
                                     at::ScalarType compute) override {
    class Packed final : public FrozenWeight {
     public:
      Packed(at::Tensor dense, int64_t bytes) : inner_(std::move(dense)), bytes_(bytes) {}
      at::Tensor matmul(const at::Tensor& x) const override { return inner_.matmul(x); }
      at::Tensor grad_input(const at::Tensor& g) const override { return inner_.grad_input(g); }
      at::Tensor dense(at::ScalarType dtype) const override { return inner_.dense(dtype); }
      int64_t bytes() const override { return bytes_; }
      void to(at::Device device) override { inner_.to(device); }
      std::vector<at::Tensor*> tensors() override { return inner_.tensors(); }

     private:
      DenseWeight inner_;
      int64_t bytes_;
    };
    if (!linear.name.ends_with(ending_)) return nullptr;
    return std::make_unique<Packed>(source.read(name).to(compute), bytes_);
  }

 private:
  std::string ending_;
  int64_t bytes_;
};

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
    EXPECT_EQ(error.code(), "MODEL_KEYS");
    return error.what();
  }
  return "no error";
}

TEST(SourceBuilder, AsksBeforeEachWeightThatItReads) {
  test::MemorySource source(weights());
  assembly::BuildOptions asking = options(at::kFloat);
  int asked = 0;
  asking.before_weight = [&] {
    if (++asked == 3) throw Error(ExitCode::preempted, "stopped");
  };
  assembly::SourceBuilder builder(source, asking);
  builder.linear("attn.to_q", 3, 2, true);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(test::message_of([&] { builder.parameter("norm.weight", {4}); }), "stopped");
  assembly::BuildOptions headers = asking;
  headers.headers_only = true;
  assembly::SourceBuilder(source, headers).linear("attn.to_q", 3, 2, true);
  EXPECT_EQ(asked, 3) << "nothing was to be read";
}

TEST(SourceBuilder, MissingTensorsAndWrongShapesAreNamed) {
  test::MemorySource source(weights(), "model.safetensors");
  assembly::SourceBuilder builder(source, {});
  const std::string missing = error_of([&] { builder.linear("attn.to_k", 3, 2, false); });
  EXPECT_TRUE(missing.starts_with(
      "model.safetensors: tensor \"attn.to_k.weight\" is missing (did you mean \"attn.to_q.weight\""))
      << missing;
  EXPECT_EQ(error_of([&] { builder.linear("attn.to_q", 4, 2, false); }),
            "model.safetensors: tensor \"attn.to_q.weight\" has shape [2, 3], the model needs [2, 4]");
  EXPECT_EQ(error_of([&] { builder.parameter("norm.weight", {5}); }),
            "model.safetensors: tensor \"norm.weight\" has shape [4], the model needs [5]");
  EXPECT_EQ(error_of([&] { builder.parameter("zzzzzz", {5}); }), "model.safetensors: tensor \"zzzzzz\" is missing");
}

TEST(SourceBuilder, FrozenWeightsAreCopiesInTheComputeDtype) {
  test::MemorySource source(weights());
  assembly::SourceBuilder builder(source, options(at::kBFloat16));
  const Linear linear = builder.linear("attn.to_q", 3, 2, true);
  const ParameterPtr norm = builder.parameter("norm.weight", {4});
  EXPECT_EQ(linear.name(), "attn.to_q");
  EXPECT_TRUE(
      test::same_bits(linear.state().frozen->dense(at::kBFloat16), weights()["attn.to_q.weight"].to(at::kBFloat16)));
  EXPECT_EQ(linear.state().bias->value().scalar_type(), at::kBFloat16);
  EXPECT_NE(linear.state().bias->value().data_ptr(), source.read("attn.to_q.bias").data_ptr())
      << "never a view of the file";
  EXPECT_TRUE(linear.trainable().empty());
  EXPECT_FALSE(norm->trainable());
  EXPECT_EQ(builder.inventory().weight_bytes, 2 * (6 + 2 + 4));
  EXPECT_EQ(builder.inventory().parameter_count, 12);
  EXPECT_TRUE(assembly::trained_parameters(builder.inventory()).empty());
}

/// Of a family of experts only one is trained: the other's weights are frozen ones, also when they are read later.
TEST(SourceBuilder, WhatTheModelSparesIsNotTrained) {
  for (const bool later : {false, true}) {
    test::MemorySource source(weights());
    assembly::BuildOptions trained = options(at::kBFloat16, true);
    trained.headers_only = later;
    assembly::SourceBuilder builder(source, trained);
    builder.spare(true);
    const Linear spared = builder.linear("attn.to_q", 3, 2, true);
    builder.spare(false);
    const ParameterPtr norm = builder.parameter("norm.weight", {4});
    if (later) builder.materialise(builder.inventory().linears, builder.inventory().parameters);
    EXPECT_TRUE(spared.state().spared);
    ASSERT_TRUE(spared.state().frozen);
    EXPECT_TRUE(
        test::same_bits(spared.state().frozen->dense(at::kBFloat16), weights()["attn.to_q.weight"].to(at::kBFloat16)));
    EXPECT_EQ(spared.state().bias->value().scalar_type(), at::kBFloat16);
    EXPECT_TRUE(spared.trainable().empty());
    EXPECT_TRUE(norm->trainable());
    EXPECT_EQ(assembly::trained_parameters(builder.inventory()), std::vector<Parameter*>{norm.get()});
  }
}

TEST(SourceBuilder, TrainedWeightsAreFp32MastersUnderAnyComputeDtype) {
  test::MemorySource source(weights());
  assembly::SourceBuilder builder(source, options(at::kBFloat16, true));
  const Linear linear = builder.linear("attn.to_q", 3, 2, true);
  (void)builder.parameter("norm.weight", {4});
  EXPECT_EQ(builder.dtype(), at::kBFloat16);
  std::vector<std::string> names;
  for (Parameter* parameter : assembly::trained_parameters(builder.inventory())) {
    names.push_back(parameter->name());
    EXPECT_EQ(parameter->value().scalar_type(), at::kFloat) << parameter->name();
    EXPECT_TRUE(parameter->value().is_leaf() && parameter->trainable()) << parameter->name();
  }
  EXPECT_EQ(names, (std::vector<std::string>{"attn.to_q.weight", "attn.to_q.bias", "norm.weight"}));
  const at::Tensor y = linear(at::ones({1, 3}, at::kBFloat16));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_TRUE(test::same_bits(linear.state().weight->value().grad(), at::ones({2, 3})))
      << "the master gets the gradient";
}

TEST(SourceBuilder, HeadersOnlyReadsNothing) {
  test::MemorySource inner(weights(), "model.safetensors");
  HeadersOnly source(inner);
  assembly::BuildOptions headers;
  headers.headers_only = true;
  assembly::SourceBuilder builder(source, headers);
  const Linear linear = builder.linear("attn.to_q", 3, 2, true);
  (void)builder.parameter("norm.weight", {4});
  EXPECT_EQ(builder.inventory().parameter_count, 12);
  EXPECT_EQ(builder.inventory().weight_bytes, 0);
  EXPECT_EQ(linear.state().frozen, nullptr);
  EXPECT_TRUE(assembly::trained_parameters(builder.inventory()).empty());
  EXPECT_THROW((void)linear(at::ones({1, 3})), std::exception) << "the model cannot run";
  EXPECT_EQ(error_of([&] { builder.parameter("norm.weight", {5}); }),
            "model.safetensors: tensor \"norm.weight\" has shape [4], the model needs [5]");
}

/// Counts what is read.
class Counting final : public WeightSource {
 public:
  explicit Counting(WeightSource& inner) : inner_(inner) {}
  [[nodiscard]] std::vector<std::string> names() const override { return inner_.names(); }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override { return inner_.find(name); }
  [[nodiscard]] at::Tensor read(std::string_view name) override {
    reads.emplace_back(name);
    return inner_.read(name);
  }
  [[nodiscard]] std::string describe() const override { return inner_.describe(); }
  [[nodiscard]] std::string identity() const override { return inner_.identity(); }
  std::vector<std::string> reads;

 private:
  WeightSource& inner_;
};

TEST(SourceBuilder, MaterialisesWhatIsAskedForAndReadsNothingElse) {
  NamedTensors many = weights();
  many["attn.to_k.weight"] = at::ones({2, 3});
  test::MemorySource inner(many);
  for (const bool trained : {false, true}) {
    Counting source(inner);
    assembly::BuildOptions headers = options(at::kBFloat16, trained);
    headers.headers_only = true;
    assembly::SourceBuilder builder(source, headers);
    const Linear q = builder.linear("attn.to_q", 3, 2, true), k = builder.linear("attn.to_k", 3, 2, false);
    const ParameterPtr norm = builder.parameter("norm.weight", {4});
    EXPECT_TRUE(source.reads.empty());
    builder.materialise(std::vector{q}, std::vector{norm});
    EXPECT_EQ(source.reads, (std::vector<std::string>{"attn.to_q.weight", "attn.to_q.bias", "norm.weight"}));
    assembly::SourceBuilder at_once(inner, options(at::kBFloat16, trained));
    const at::Tensor x = at::ones({1, 3}, at::kBFloat16);
    EXPECT_TRUE(test::same_bits(q(x), at_once.linear("attn.to_q", 3, 2, true)(x)));
    EXPECT_EQ(norm->trainable(), trained);
    EXPECT_EQ(q.state().weight != nullptr, trained);
    EXPECT_THROW((void)k(x), std::exception) << "was left out";
    EXPECT_EQ(builder.inventory().weight_bytes, (trained ? 4 : 2) * (6 + 2 + 4));
  }
}

TEST(SourceBuilder, AFormatPacksTheWeightsThatItWants) {
  NamedTensors many = weights();
  many["attn.to_k.weight"] = at::zeros({2, 3});
  test::MemorySource source(many);
  PackSome only_q("to_q", 100);
  assembly::BuildOptions packed = options(at::kFloat);
  packed.format = &only_q;
  assembly::SourceBuilder builder(source, packed);
  EXPECT_EQ(builder.linear("attn.to_q", 3, 2, false).state().frozen->bytes(), 100);
  EXPECT_EQ(builder.linear("attn.to_k", 3, 2, false).state().frozen->bytes(), 24) << "dense: 6 floats";
  EXPECT_EQ(builder.inventory().weight_bytes, 124);
  EXPECT_EQ(builder.inventory().parameter_count, 12);
  EXPECT_EQ(error_of([&] { builder.linear("attn.to_q", 3, 9, false); }),
            "memory: tensor \"attn.to_q.weight\" has shape [2, 3], the model needs [9, 3]")
      << "the shape is checked before packing";
  packed.trained = true;
  assembly::SourceBuilder trained(source, packed);
  EXPECT_EQ(trained.linear("attn.to_q", 3, 2, false).state().frozen, nullptr) << "trained weights are never packed";
}

}  // namespace
}  // namespace trainer::execution
