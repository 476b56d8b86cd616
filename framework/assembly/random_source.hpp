/// @file Weights made from keys under given names and shapes, for proofs where no trained file is at hand.
#pragma once

#include <trainer/sdk/weights.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trainer::assembly {

/// Keyed random numbers for `name`: matrices normal with variance 1 / inputs, so that activations keep their size;
/// vectors 1 + normal / 10, as scales of norms are. fp32, a function of (seed, name, shape).
at::Tensor random_weight(uint64_t seed, const std::string& name, const std::vector<int64_t>& shape);

/// A weight file that exists nowhere. Made tensor by tensor when read.
class RandomSource final : public WeightSource {
 public:
  RandomSource(const std::vector<NamedShape>& tensors, uint64_t seed, std::string description);
  [[nodiscard]] std::vector<std::string> names() const override;
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override;
  [[nodiscard]] at::Tensor read(std::string_view name) override;
  [[nodiscard]] std::string describe() const override { return description_; }
  [[nodiscard]] std::string identity() const override { return description_; }

 private:
  std::map<std::string, TensorInfo, std::less<>> infos_;
  uint64_t seed_;
  std::string description_;
};

}  // namespace trainer::assembly
