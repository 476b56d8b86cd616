#include "lora_fixture.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>

#include <base/hash.hpp>
#include <execution/keyed_random.hpp>
#include <trainer/sdk/error.hpp>
#include <weights/write.hpp>

namespace trainer::adapter {

std::vector<LoraLayer> random_layers(const LoraShape& shape, const std::string& part) {
  flux2::Config config;
  config.in_channels = config.out_channels = 8;
  config.num_layers = config.num_single_layers = 2;
  config.heads = 2;
  config.head_dim = 8;
  config.joint_dim = 12;
  config.time_channels = 6;
  config.mlp_hidden = 10;
  config.guidance = true;
  std::vector<LoraLayer> layers;
  for (const auto& [name, sizes] : flux2::expected_tensors(config)) {
    const std::string layer = name.substr(0, name.rfind('.'));
    if (sizes.size() != 2 || layer.find(part) == std::string::npos) continue;
    const auto random = [&](const char* what, at::IntArrayRef size) {
      const uint64_t key = std::stoull(xxh128(layer + what).substr(0, 16), nullptr, 16);
      return execution::keyed_normal(KeyedRng(key, RngStream::synthetic), size).to(shape.dtype);
    };
    layers.push_back({layer, random("A", {shape.rank, sizes[1]}), random("B", {sizes[0], shape.rank}), shape.alpha});
  }
  return layers;
}

at::Tensor delta(const LoraLayer& layer) {
  return at::mm(layer.up.to(at::kDouble), layer.down.to(at::kDouble)) * layer.scale();
}

std::filesystem::path LoraFiles::write(const std::string& format, std::vector<LoraLayer> layers,
                                       const std::string& name) {
  const auto file = folder_ / (name + ".safetensors");
  write_lora(file, {std::move(layers), format, {}, 7}, family_, format_named(family_, format));
  return file;
}

std::filesystem::path LoraFiles::convert(const std::filesystem::path& file, const std::string& format,
                                         const std::string& name) {
  const auto to = folder_ / (name + ".safetensors");
  write_lora(to, read_lora(file, family_), family_, format_named(family_, format));
  return to;
}

std::filesystem::path LoraFiles::raw(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  const auto file = folder_ / "raw.safetensors";
  weights::write_safetensors(file, {tensors.begin(), tensors.end()}, metadata);
  return file;
}

std::string LoraFiles::refusal(const std::filesystem::path& file) {
  try {
    (void)read_lora(file, family_);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
    return error.code() + ": " + error.what();
  }
  return "accepted";
}

}  // namespace trainer::adapter
