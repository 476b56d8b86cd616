/// @file What parity tests share: the directories with reference numbers, a small safetensors reader of its own (so
/// that the trainer's reader is not its own judge), a WeightSource over tensors in memory, and the two error measures.
#pragma once

#include <trainer/sdk/weights.hpp>

#include <filesystem>
#include <nlohmann/json.hpp>

namespace trainer::test {

/// The two committed directories, or the one that TRAINER_PARITY_DIR names.
std::vector<std::filesystem::path> parity_dirs();
/// The name of a directory in letters, digits and underscores.
std::string word_of(const std::filesystem::path& directory);
/// Names the instances of a gtest suite whose parameters are directories.
struct DirName {
  std::string operator()(const auto& info) const { return word_of(info.param); }
};

/// Whole text of a file. Throws std::runtime_error when it cannot be read.
std::string file_text(const std::filesystem::path& file);
nlohmann::json file_json(const std::filesystem::path& file);

/// All tensors of a safetensors file, copied.
NamedTensors load_tensors(const std::filesystem::path& file);

/// max |a - ref| / max |ref| and |a - ref| / |ref|, in fp64; infinite when shapes differ or `a` holds NaN.
double max_error(const at::Tensor& a, const at::Tensor& ref);
double l2_error(const at::Tensor& a, const at::Tensor& ref);
/// Same dtype, shape and bits.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

/// Tensors in memory as a weight file.
class MemorySource final : public WeightSource {
 public:
  explicit MemorySource(NamedTensors tensors_in, std::string name = "memory");
  [[nodiscard]] std::vector<std::string> names() const override;
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override;
  [[nodiscard]] at::Tensor read(std::string_view name) override;
  [[nodiscard]] std::string describe() const override { return name_; }
  [[nodiscard]] std::string identity() const override { return name_; }

 private:
  NamedTensors tensors_;
  std::map<std::string, TensorInfo, std::less<>> infos_;
  std::string name_;
};

}  // namespace trainer::test
