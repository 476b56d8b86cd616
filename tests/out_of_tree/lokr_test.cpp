/// @file The stranger's LoKr against LyCORIS: same factors, names and alpha, same output and gradients
/// (lokr_reference.json, made with lycoris-lora's LokrModule on linear layers).
#include "strangers.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/kron.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>

#include <unistd.h>

#include <adapter/adapter_file.hpp>
#include <adapter/inject.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

namespace trainer::strangers {
namespace {

using nlohmann::json;

at::Tensor tensor_of(const json& text) {
  return at::tensor(text["values"].get<std::vector<float>>(), at::kFloat)
      .view(text["shape"].get<std::vector<int64_t>>());
}

std::unique_ptr<Adapter> lokr(int64_t rank, double alpha, int64_t factor,
                              const std::vector<std::string>& targets = {}) {
  loader().require("adapter", "lokr");
  Array list;
  for (const std::string& target : targets) list.push_back({target});
  return loader().registry().adapters.at("lokr").create(
      Options("adapter", {{"rank", {rank}}, {"alpha", {alpha}}, {"factor", {factor}}, {"targets", {list}}}));
}

Linear layer(const at::Tensor& weight) {
  auto state = std::make_shared<LinearState>();
  state->name = "layer";
  state->in = weight.size(1), state->out = weight.size(0);
  state->frozen = std::make_shared<DenseWeight>(weight);
  return Linear(state);
}

double error(const at::Tensor& value, const at::Tensor& expected) {
  EXPECT_EQ(value.sizes(), expected.sizes());
  return ((value - expected).abs().max() / expected.abs().max()).item<double>();
}

TEST(Lokr, ComputesWhatLycorisDoes) {
  const json reference = test::file_json(std::getenv("TRAINER_TEST_LOKR"));
  ASSERT_EQ(reference["cases"].size(), 4U);
  std::set<std::size_t> kinds;
  for (const json& one : reference["cases"]) {
    const auto adapter = lokr(one["rank"], one["alpha"], one["factor"]);
    const std::vector<Linear> layers{layer(tensor_of(one["weight"]))};
    const auto parameters = adapter::inject(*adapter, layers, 1, at::kCPU);
    const NamedTensors exported = adapter->export_layer(layers[0].state());
    ASSERT_EQ(exported.size(), one["state"].size());
    kinds.insert(exported.size());
    for (const auto& [name, value] : one["state"].items()) {
      const auto found = exported.find("layer." + name);
      ASSERT_NE(found, exported.end()) << name;
      EXPECT_EQ(found->second.sizes(), tensor_of(value).sizes()) << name;
    }
    EXPECT_EQ(exported.at("layer.alpha").item<double>(), tensor_of(one["state"]["alpha"]).item<double>());
    for (Parameter* parameter : parameters)
      parameter->value() = tensor_of(one["state"][parameter->name().substr(6)]).requires_grad_(true);
    const at::Tensor x = tensor_of(one["x"]).requires_grad_(true);
    const at::Tensor y = layers[0](x);
    EXPECT_LT(error(y, tensor_of(one["output"])), 2e-6);
    y.backward(tensor_of(one["grad_out"]));
    EXPECT_LT(error(x.grad(), tensor_of(one["grad_x"])), 2e-6);
    for (Parameter* parameter : parameters)
      EXPECT_LT(error(parameter->value().grad(), tensor_of(one["grads"][parameter->name().substr(6)])), 2e-6)
          << parameter->name();
  }
  EXPECT_EQ(kinds, (std::set<std::size_t>{3, 4})) << "a full second factor, and one of low rank";
}

/// A fresh adapter changes nothing; once its last matrix moves, the layer has the weight plus a Kronecker product.
TEST(Lokr, BeginsAtZeroAndIsAKroneckerProduct) {
  const at::Tensor weight = numbers(1, {18, 12}), x = numbers(2, {5, 12});
  const auto adapter = lokr(2, 3.0, -1);
  const std::vector<Linear> layers{layer(weight)};
  const auto parameters = adapter::inject(*adapter, layers, 1, at::kCPU);
  ASSERT_EQ(parameters.size(), 3U);
  EXPECT_TRUE(test::same_bits(layers[0](x).detach(), at::mm(x, weight.t())));
  EXPECT_GT(parameters[0]->value().abs().max().item<float>(), 0);
  parameters[2]->value() = numbers(3, parameters[2]->value().sizes()).requires_grad_(true);
  const at::Tensor update =
      at::kron(parameters[0]->value(), at::mm(parameters[1]->value(), parameters[2]->value())) * 1.5;
  EXPECT_LT(error(layers[0](x).detach(), at::mm(x, (weight + update).t()).detach()), 1e-6);
}

/// An adapter of a third party imports what it exports, in memory and through a file with its metadata.
TEST(Lokr, ReadsItsFileAgain) {
  const adapter::AdapterKind kind{"lokr", plugin::schema_of(loader().found(), "adapter", "lokr").tensors};
  const LoraFamily family = adapter::plain_family("a test");
  for (const int64_t rank : {2, 64}) {  // a second factor of two matrices, and a whole one
    const at::Tensor weight = numbers(1, {18, 12}), x = numbers(2, {5, 12});
    const auto first = lokr(rank, 3.0, 2);
    const std::vector<Linear> layers{layer(weight)}, again{layer(weight)};
    for (Parameter* parameter : adapter::inject(*first, layers, 1, at::kCPU))
      parameter->value() = numbers(parameter->name().size(), parameter->value().sizes()).requires_grad_(true);
    AdapterFile made{{}, first->metadata()};
    for (const auto& [name, tensor] : first->export_layer(layers[0].state()))
      made.layers["layer"][name.substr(6)] = tensor;
    const auto file = std::filesystem::temp_directory_path() / ("lokr-" + std::to_string(::getpid()) + ".safetensors");
    adapter::write_adapter(file, made, "lokr", family, family.formats.front(), 7);
    const weights::TensorFile opened(file);
    EXPECT_EQ(adapter::kind_of(opened, {&kind, 1}), &kind);
    adapter::ReadAdapter read = adapter::read_adapter(opened, family, &kind);
    std::filesystem::remove(file);
    EXPECT_EQ(read.step, 7);
    EXPECT_EQ(read.format, "canonical");
    EXPECT_EQ(read.file.metadata.at("lokr.factor"), "2");
    EXPECT_EQ(read.layers(), std::vector<std::string>{"layer"});
    EXPECT_FALSE(read.lora.has_value());
    const auto second = loader().registry().adapters.at("lokr").create(
        Options("adapter", {{"rank", {}}, {"alpha", {}}, {"factor", {}}, {"targets", {Array{}}}}));
    second->start_from(read.file);
    const auto parameters = adapter::inject(*second, again, 2, at::kCPU);
    EXPECT_TRUE(parameters.front()->trainable());
    EXPECT_TRUE(test::same_bits(layers[0](x).detach(), again[0](x).detach())) << rank;
    EXPECT_EQ(second->metadata(), first->metadata());
    const NamedTensors exported = second->export_layer(again[0].state());
    for (const auto& [name, tensor] : made.layers["layer"])
      EXPECT_TRUE(test::same_bits(exported.at("layer." + name), tensor)) << name;
  }
}

TEST(Lokr, RefusesAFileThatContradictsTheRecipe) {
  const auto adapter = lokr(3, 3.0, -1);
  AdapterFile file;
  file.layers["layer"] = {
      {"lokr_w1", numbers(1, {3, 3})}, {"lokr_w2_a", numbers(2, {6, 2})}, {"lokr_w2_b", numbers(3, {2, 4})}};
  try {
    adapter->start_from(file);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
    EXPECT_STREQ(error.what(),
                 "adapter.rank: the file has another rank on \"layer\"; leave rank out to take the file's");
  }
}

TEST(Lokr, WritesNamesOfItsOwn) {
  const auto adapter = lokr(4, 4.0, -1, {"blocks.*"});
  EXPECT_EQ(adapter->targets(), std::vector<std::string>{"blocks.*"});
  EXPECT_EQ(adapter->describe(), "LoKr rank 4, factor -1");
}

}  // namespace
}  // namespace trainer::strangers
