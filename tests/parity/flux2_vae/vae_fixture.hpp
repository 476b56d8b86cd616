/// @file Makes autoencoders of a parity directory, in either file layout.
#pragma once

#include <flux2_vae/autoencoder.hpp>
#include <support/parity.hpp>

namespace trainer::test {

inline Options vae_options(const std::string& tiling) { return {"autoencoder", Table{{"tiling", Value{tiling}}}}; }

/// An autoencoder over `tensors`; `config` is the text of config.json or "".
inline std::unique_ptr<flux2_vae::Flux2Autoencoder> make_vae(NamedTensors tensors, const std::string& config,
                                                             const std::string& tiling = "never",
                                                             at::ScalarType dtype = at::kFloat) {
  const Options options = vae_options(tiling);
  const EncoderContext context{
      options, std::make_shared<MemorySource>(std::move(tensors), "vae.safetensors"), config, nullptr, dtype, at::kCPU};
  return std::make_unique<flux2_vae::Flux2Autoencoder>(context);
}

struct VaeDir {
  explicit VaeDir(const std::filesystem::path& dir)
      : diffusers(load_tensors(dir / "model/vae/diffusion_pytorch_model.safetensors")),
        bfl(load_tensors(dir / "model-bfl/ae.safetensors")),
        config(file_text(dir / "model/vae/config.json")),
        data(load_tensors(dir / "vae.safetensors")) {}

  NamedTensors diffusers, bfl;
  std::string config;
  NamedTensors data;
};

}  // namespace trainer::test
