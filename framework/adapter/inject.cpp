#include <ATen/TensorOptions.h>
#include <ATen/ops/empty.h>
#include <adapter/inject.hpp>
#include <base/hash.hpp>
#include <base/rng.hpp>
#include <trainer/sdk/names.hpp>

#include <set>

namespace trainer::adapter {
namespace {

constexpr std::size_t kNamed = 8;  ///< layers in one message

uint64_t key_of(const std::string& name) { return std::stoull(xxh128(name).substr(0, 16), nullptr, 16); }

std::span<float> floats(at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

/// Throws Error (bad_recipe) unless each of `names`, the layers of a file, is chosen.
void require_chosen(std::span<const std::string> names, std::span<const Linear> chosen) {
  std::set<std::string> targets;
  for (const Linear& layer : chosen) targets.insert(layer.name());
  std::string listed;
  std::size_t left = 0;
  for (const std::string& name : names)
    if (!targets.contains(name) && ++left <= kNamed) listed += (left > 1 ? ", " : "") + quote_name(name);
  if (left == 0) return;
  if (left > kNamed) listed += " and " + std::to_string(left - kNamed) + " more";
  throw Error(ExitCode::bad_recipe,
              "adapter.targets: " + std::to_string(left) + " of the " + std::to_string(names.size()) +
                  " layers in the file of adapter.path are no target, and what it holds for them would be lost: " +
                  listed + "; leave targets out to train the file's layers");
}

std::vector<Linear> chosen_by(const std::vector<std::string>& patterns, Model& model, std::span<const Linear> layers) {
  if (patterns != std::vector<std::string>{"*"}) return select(layers, patterns);
  std::vector<Linear> chosen;
  for (const Block* block : model.blocks())
    for (const Linear& linear : block->info().linears)
      if (!linear.state().spared) chosen.push_back(linear);
  return chosen;
}

}  // namespace

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.find('*') != std::string_view::npos) return matches_glob(pattern, name);
  return name == pattern ||
         (name.size() > pattern.size() && name.ends_with(pattern) && name[name.size() - pattern.size() - 1] == '.');
}

std::vector<Linear> select(std::span<const Linear> layers, std::span<const std::string> patterns) {
  std::vector<bool> wanted(layers.size(), false);
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (std::size_t i = 0; i < layers.size(); ++i)
      if (!layers[i].state().spared && matches(pattern, layers[i].name())) wanted[i] = found = true;
    if (found) continue;
    std::vector<std::string> names;
    for (const Linear& layer : layers) names.push_back(layer.name());
    throw Error(ExitCode::bad_recipe, "adapter.targets: \"" + pattern + "\" matches no linear layer" +
                                          did_you_mean(pattern, names) + "; the model has " +
                                          std::to_string(layers.size()) + ", `trainer inspect` lists them");
  }
  std::vector<Linear> chosen;
  for (std::size_t i = 0; i < layers.size(); ++i)
    if (wanted[i]) chosen.push_back(layers[i]);
  return chosen;
}

std::vector<Linear> targeted(const Adapter& adapter, Model& model, std::span<const Linear> layers,
                             std::span<const std::string> in_file) {
  std::vector<std::string> patterns = adapter.targets();
  if (patterns.empty()) patterns.assign(in_file.begin(), in_file.end());
  if (patterns.empty()) patterns = model.default_targets();
  std::vector<Linear> chosen = chosen_by(patterns, model, layers);
  require_chosen(in_file, chosen);
  return chosen;
}

std::vector<Parameter*> inject(const Adapter& adapter, std::span<const Linear> layers, uint64_t seed, at::Device device,
                               at::ScalarType dtype) {
  std::vector<Parameter*> parameters;
  for (const Linear& layer : layers) {
    LinearState& state = layer.state();
    KeyedRng rng(seed, RngStream::adapter_init, 0, key_of(state.name));
    AttachContext context{.device = device, .dtype = dtype, .uniform = {}, .normal = {}};
    context.uniform = [&](double low, double high, at::IntArrayRef shape) {
      if (device.is_meta()) return at::empty(shape, at::device(device).dtype(at::kFloat));
      at::Tensor data = at::empty(shape, at::kFloat);
      rng.fill_uniform(floats(data), static_cast<float>(low), static_cast<float>(high));
      return data.to(device);
    };
    context.normal = [&](double mean, double std, at::IntArrayRef shape) {
      if (device.is_meta()) return at::empty(shape, at::device(device).dtype(at::kFloat));
      at::Tensor data = at::empty(shape, at::kFloat);
      rng.fill_normal(floats(data));
      return data.mul_(std).add_(mean).to(device);
    };
    state.adapter = adapter.attach(state, context);
    for (Parameter* parameter : state.adapter->parameters()) parameters.push_back(parameter);
  }
  return parameters;
}

std::vector<Parameter*> inject(const Adapter& adapter, std::span<const Linear> layers, uint64_t seed,
                               const std::function<at::Device(const std::string& layer)>& device_of,
                               at::ScalarType dtype) {
  std::vector<Parameter*> parameters;
  for (const Linear& layer : layers)
    for (Parameter* parameter : inject(adapter, std::span(&layer, 1), seed, device_of(layer.name()), dtype))
      parameters.push_back(parameter);
  return parameters;
}

}  // namespace trainer::adapter
