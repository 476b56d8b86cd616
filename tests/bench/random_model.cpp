/// @file See random_model.hpp.
#include "random_model.hpp"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <base/hash.hpp>
#include <flux2/names.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <mutex>

namespace trainer::bench {
namespace {

flux2::Config config_of(const nlohmann::json& shape) {
  flux2::Config config;
  config.in_channels = config.out_channels = shape.at("channels");
  config.num_layers = shape.at("double");
  config.num_single_layers = shape.at("single");
  config.heads = shape.at("heads");
  config.head_dim = shape.at("head_dim");
  config.joint_dim = shape.at("joint_dim");
  config.time_channels = 256;
  config.mlp_hidden = 3 * config.hidden();
  config.axes.assign(4, config.head_dim / 4);
  config.guidance = shape.at("guidance");
  return config;
}

class RandomWeights final : public WeightSource {
 public:
  RandomWeights(const flux2::Shapes& shapes, at::TensorOptions options) : options_(options) {
    for (const auto& [name, shape] : shapes) infos_[name] = {name, c10::typeMetaToScalarType(options_.dtype()), shape};
  }
  [[nodiscard]] std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, info] : infos_) names.push_back(name);
    return names;
  }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override {
    const auto it = infos_.find(name);
    return it == infos_.end() ? nullptr : &it->second;
  }
  [[nodiscard]] at::Tensor read(std::string_view name) override {
    const TensorInfo& info = infos_.find(name)->second;
    if (info.shape.size() < 2) return at::ones(info.shape, options_);
    at::Generator generator = at::globalContext().defaultGenerator(options_.device());
    {
      const std::lock_guard lock(generator.mutex());
      generator.set_current_seed(std::stoull(xxh128(info.name).substr(0, 16), nullptr, 16));
    }
    return at::randn(info.shape, generator, options_).mul_(0.5 / std::sqrt(static_cast<double>(info.shape[1])));
  }
  [[nodiscard]] std::string describe() const override { return "random weights"; }
  [[nodiscard]] std::string identity() const override { return "random weights"; }

 private:
  std::map<std::string, TensorInfo, std::less<>> infos_;
  at::TensorOptions options_;
};

}  // namespace

std::shared_ptr<WeightSource> random_flux2(const nlohmann::json& shape, at::ScalarType dtype, at::Device device) {
  return std::make_shared<RandomWeights>(flux2::expected_tensors(config_of(shape)),
                                         at::TensorOptions().dtype(dtype).device(device));
}

}  // namespace trainer::bench
