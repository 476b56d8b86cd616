/// @file A model as it lies on disk, whatever the layout: one file, a folder with one file, a folder with an index and
/// shards (or the index itself), or a component folder of a diffusers pipeline.
#pragma once

#include <trainer/sdk/weights.hpp>
#include <weights/tensor_file.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trainer::weights {

struct ModelOptions {
  ReadOptions read = {.profile = Profile::compat};  ///< models come from others: compat
  std::string component = {};  ///< subfolder to take when the path is a whole pipeline, e.g. "transformer"
};

/// All tensors of a model, merged over its shards.
class ModelFiles final : public WeightSource {
 public:
  /// Looks, in a folder, for: an index (`diffusion_pytorch_model.safetensors.index.json`,
  /// `model.safetensors.index.json`, or the only `*.safetensors.index.json`), then
  /// `diffusion_pytorch_model.safetensors`, `model.safetensors`, then the only `*.safetensors`. Opens and checks all
  /// headers, reads no data. Throws Error: not_found; bad_input (ST_*, IDX_*, MODEL_FILES when the folder is
  /// ambiguous); io.
  static std::unique_ptr<ModelFiles> open(const std::filesystem::path& path, const ModelOptions& options = {});

  [[nodiscard]] std::vector<std::string> names() const override;
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override;
  [[nodiscard]] at::Tensor read(std::string_view name) override;
  [[nodiscard]] at::Tensor read_rows(std::string_view name, int64_t begin, int64_t end) override;
  [[nodiscard]] std::string describe() const override { return path_.string(); }
  /// Of header bytes, sizes and content (of files over 256 MB: 1,024 pieces of 64 KiB spread over it): a copy is the
  /// same model, a changed one is not, whatever the modification times say. Read once.
  [[nodiscard]] std::string identity() const override;

  /// `config.json` beside the weights.
  [[nodiscard]] const std::optional<std::string>& config() const { return config_; }
  /// Metadata of all files; where two differ, the first file's value.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Bytes of all tensors.
  [[nodiscard]] uint64_t total_bytes() const;
  [[nodiscard]] const std::vector<TensorFile>& files() const { return files_; }

 private:
  ModelFiles() = default;
  void open_folder(const ModelOptions& options);
  void open_index(const std::string& index_name, const ModelOptions& options);
  [[nodiscard]] const TensorFile& holder(std::string_view name) const;

  std::filesystem::path path_;  // as named by the user, with the component
  std::vector<TensorFile> files_;
  std::map<std::string, std::size_t, std::less<>> holders_;  // tensor -> position in files_
  std::map<std::string, std::string> metadata_;
  std::optional<std::string> config_;
  mutable std::string identity_;  // once asked for
};

}  // namespace trainer::weights
