/// @file What the tests of the FLUX.2 transformer share: parity directories, models made from them, error measures.
#pragma once

#include <gtest/gtest.h>
#include <trainer/sdk/model.hpp>

#include <filesystem>
#include <flux2/model.hpp>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <support/parity.hpp>
#include <support/simple_builder.hpp>
#include <vector>

namespace trainer::flux2 {

/// The directories to test: TRAINER_PARITY_DIR, or the two committed ones.
std::vector<std::filesystem::path> parity_directories();
nlohmann::json read_json(const std::filesystem::path& file);

/// Largest difference relative to the largest reference value, as in the README of the parity data.
double error_max(const at::Tensor& value, const at::Tensor& reference);
/// |value - reference| / |reference|.
double error_l2(const at::Tensor& value, const at::Tensor& reference);

/// Tensors in memory, editable; for layouts and faults that no file has.
class MemoryWeights final : public WeightSource {
 public:
  /// A copy of everything in `source`.
  static std::shared_ptr<MemoryWeights> copy(WeightSource& source);
  void set(const std::string& name, at::Tensor tensor);
  void erase(const std::string& name);
  void rename(const std::string& from, const std::string& to);
  [[nodiscard]] std::vector<std::string> names() const override;
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override;
  [[nodiscard]] at::Tensor read(std::string_view name) override;
  [[nodiscard]] std::string describe() const override { return "weights.safetensors"; }
  [[nodiscard]] std::string identity() const override { return "memory"; }

 private:
  std::map<std::string, at::Tensor, std::less<>> tensors_;
  std::map<std::string, TensorInfo, std::less<>> infos_;
};

/// A model and what it was built from.
struct Built {
  std::shared_ptr<WeightSource> weights;
  std::unique_ptr<testing::SimpleBuilder> builder;
  std::unique_ptr<Flux2Model> model;
};
struct BuildAs {
  at::ScalarType dtype = at::kFloat;
  bool trained = false;
  bool round_time = false;
  bool fused = true;
};
/// Maps `file` as the host does and builds the model.
Built build(std::shared_ptr<WeightSource> file, const std::string& config, const BuildAs& as = {});
/// The same from a folder or file of a parity directory; `config` is read beside it when there is one.
Built build(const std::filesystem::path& path, const BuildAs& as = {});

/// All that a forward makes.
struct Trace {
  Flow prologue;
  std::vector<std::vector<at::Tensor>> after;  ///< carried tensors after each block
  Flow last;
  at::Tensor velocity;
};
/// `times`: encoded times to start from, instead of those of `inputs`.
Trace run(Flux2Model& model, const NamedTensors& inputs, bool recompute = false, const Sinusoids* times = nullptr);

/// One parity directory.
class Parity {
 public:
  explicit Parity(const std::filesystem::path& directory);
  [[nodiscard]] const at::Tensor& operator[](const std::string& name) const { return tensors_.at(name); }
  [[nodiscard]] bool has(const std::string& name) const { return tensors_.contains(name); }
  [[nodiscard]] const NamedTensors& tensors() const { return tensors_; }
  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  /// Tokens [B, N, C] of the target grid -> latents [B, C, 1, h, w].
  [[nodiscard]] at::Tensor latents(const at::Tensor& tokens) const;
  [[nodiscard]] static at::Tensor tokens(const at::Tensor& latents) { return latents.flatten(2).transpose(1, 2); }
  /// Inputs of the plain case; `times`: "in." or "exact.in.".
  [[nodiscard]] NamedTensors inputs(const std::string& times = "in.") const;
  /// The encoded times of a case as the reference machine computed them: stored for "in."; for another case they are
  /// made from the frequencies that its stored sinusoids show (exp of fp32 differs in the last bit between CPUs).
  [[nodiscard]] Sinusoids sinusoids(const std::string& times = "in.") const;
  /// Reference latents of the "ref." case.
  [[nodiscard]] std::vector<at::Tensor> references() const;

  /// [channels / 2], of all sinusoids of the reference.
  [[nodiscard]] at::Tensor reference_frequencies() const;

 private:
  std::filesystem::path directory_;
  NamedTensors tensors_;
  nlohmann::json sizes_;
};

}  // namespace trainer::flux2
