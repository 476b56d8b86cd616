/// @file Tensor names of the FLUX.2 autoencoder: which file layout it is, what the file must hold, and one report of
/// everything that does not fit. Names inside this plugin are those of diffusers.
#pragma once

#include "config.hpp"

#include <trainer/sdk/weights.hpp>

namespace trainer::flux2_vae {

/// What layers are built from. One implementation records what is asked for, another reads it.
class TensorSupply {
 public:
  virtual ~TensorSupply() = default;
  /// The tensor with this diffusers name and shape, or an undefined tensor while names are being recorded.
  virtual at::Tensor tensor(const std::string& name, const std::vector<int64_t>& shape) = 0;
};

/// Records what a model asks for.
class Requirements final : public TensorSupply {
 public:
  at::Tensor tensor(const std::string& name, const std::vector<int64_t>& shape) override {
    tensors_.push_back({name, at::kFloat, shape});
    return {};
  }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }

 private:
  std::vector<TensorInfo> tensors_;
};

enum class Layout { diffusers, bfl };

/// How the names of a file are to be read.
struct FileLayout {
  Layout layout = Layout::diffusers;
  std::string prefix;  ///< "", "vae." or "first_stage_model."
  int64_t levels = 0;  ///< number of decoder blocks: BFL counts them the other way round
};

/// Throws Error (bad_input, MODEL_KEYS) when the names are those of neither layout, or of both.
FileLayout detect_layout(const WeightSource& file);

/// Name in the file of a diffusers name, prefix included.
std::string file_name(const FileLayout& layout, const std::string& name);

/// What names and shapes tell; FLUX.2's constants for the rest. The result is a guess where tensors are missing:
/// `check_tensors` reports those.
VaeConfig infer_config(const WeightSource& file, const FileLayout& layout);

/// Throws Error (bad_input, MODEL_KEYS) that lists all missing, unexpected and mis-shaped tensors.
void check_tensors(const WeightSource& file, const FileLayout& layout, const std::vector<TensorInfo>& required);

/// Reads checked tensors: copied out of the file, on `device` in `dtype` (batch-norm statistics in fp32).
class FileSupply final : public TensorSupply {
 public:
  FileSupply(WeightSource& file, FileLayout layout, at::ScalarType dtype, at::Device device)
      : file_(file), layout_(std::move(layout)), dtype_(dtype), device_(device) {}
  at::Tensor tensor(const std::string& name, const std::vector<int64_t>& shape) override;

 private:
  WeightSource& file_;
  FileLayout layout_;
  at::ScalarType dtype_;
  at::Device device_;
};

}  // namespace trainer::flux2_vae
