#include <ATen/TensorOperators.h>
#include <assembly/random_source.hpp>
#include <base/hash.hpp>
#include <execution/keyed_random.hpp>
#include <trainer/sdk/error.hpp>

#include <cmath>
#include <utility>

namespace trainer::assembly {

at::Tensor random_weight(uint64_t seed, const std::string& name, const std::vector<int64_t>& shape) {
  const uint64_t key = std::stoull(xxh128(name).substr(0, 16), nullptr, 16);
  at::Tensor data = execution::keyed_normal(KeyedRng(seed, RngStream::synthetic, 0, key), shape);
  if (shape.size() < 2) return data.mul_(0.1).add_(1);
  return data.div_(std::sqrt(static_cast<double>(data.numel() / shape.front())));
}

RandomSource::RandomSource(const std::vector<NamedShape>& tensors, uint64_t seed, std::string description)
    : seed_(seed), description_(std::move(description)) {
  for (const NamedShape& tensor : tensors) infos_[tensor.name] = {tensor.name, at::kFloat, tensor.shape};
}

std::vector<std::string> RandomSource::names() const {
  std::vector<std::string> names;
  for (const auto& [name, info] : infos_) names.push_back(name);
  return names;
}

const TensorInfo* RandomSource::find(std::string_view name) const {
  const auto it = infos_.find(name);
  return it == infos_.end() ? nullptr : &it->second;
}

at::Tensor RandomSource::read(std::string_view name) {
  const TensorInfo* info = find(name);
  if (info == nullptr)
    throw Error(ExitCode::bad_input, description_ + ": there is no tensor \"" + std::string(name) + "\"", "MODEL_KEYS");
  return random_weight(seed_, info->name, info->shape);
}

}  // namespace trainer::assembly
