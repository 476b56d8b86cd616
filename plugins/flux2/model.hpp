/// @file The FLUX.2 transformer (Flux2Transformer2DModel of diffusers) as the framework's Model.
#pragma once

#include <trainer/sdk/model.hpp>

#include <memory>
#include <vector>

#include "blocks.hpp"
#include "config.hpp"
#include "embedding.hpp"

namespace trainer::flux2 {

/// The encoded times [B, time_channels] fp32; `guidance` is undefined without its embedder.
struct Sinusoids {
  at::Tensor time, guidance;
};

class Flux2Model final : public Model {
 public:
  /// Options: round_time, fused (boolean). Throws Error (bad_input), see resolve_config and check_tensors.
  explicit Flux2Model(const ModelContext& context);
  [[nodiscard]] std::vector<InputSpec> inputs() const override;
  /// Inputs, any floating dtype, cast to the compute dtype:
  ///   latents [B, C, 1, h, w] noisy; timestep [B] in [0, 1]; prompt_embeds [B, L, J]; guidance [B] (when embedded);
  ///   reference_0, reference_1, ... [B, C, 1, h', w'] clean;
  ///   img_ids [N (+ R), 4] or [B, N (+ R), 4], txt_ids [L, 4] or [B, L, 4]: instead of the usual positions.
  Flow prologue(const NamedTensors& inputs) override { return embed(inputs, sinusoids(inputs)); }
  /// The two halves of the prologue. Apart, because exp() of fp32 differs in the last bit between CPUs, which a
  /// guidance of 4 (an argument of 4000) turns into 1e-4: comparisons with another machine start from its sinusoids.
  [[nodiscard]] Sinusoids sinusoids(const NamedTensors& inputs) const;
  [[nodiscard]] Flow embed(const NamedTensors& inputs, const Sinusoids& times) const;
  std::span<Block* const> blocks() override { return borrowed_; }
  /// Velocity [B, C_out, 1, h, w], of the noisy latents only.
  at::Tensor epilogue(const Flow& flow) override;
  /// Tokens of the noisy latents after the last modulated norm, before proj_out: [B, N, d].
  [[nodiscard]] at::Tensor final_norm(const Flow& flow) const;
  [[nodiscard]] const DiffusionTraits* diffusion() const override { return &traits_; }
  [[nodiscard]] std::optional<std::vector<std::string>> epilogue_layers() const override;
  [[nodiscard]] std::vector<std::string> default_targets() const override;
  [[nodiscard]] std::string describe() const override { return description_; }
  [[nodiscard]] const Config& config() const { return config_; }

 private:
  struct Embedder {
    Linear first, second;
  };
  struct Modulation {
    Linear img, txt, single, out;
  };
  Embedder embedder(ModelBuilder& build, const std::string& name) const;
  at::Tensor encode(const at::Tensor& values) const;
  at::Tensor mlp(const Embedder& embedder, const at::Tensor& sinusoid) const;
  /// Latents and references as tokens [B, N + R, C]; appends the positions of each to `ids`.
  at::Tensor pack(const NamedTensors& inputs, std::vector<at::Tensor>& ids) const;
  at::Tensor rope_table(const NamedTensors& inputs, const std::vector<at::Tensor>& image, int64_t batch,
                        int64_t text_length) const;

  Config config_;
  at::ScalarType dtype_;
  at::Device device_;
  bool round_time_;
  Rope rope_;
  Embedder time_, guidance_;
  Modulation modulation_;
  Linear x_embedder_, context_embedder_, proj_out_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Block*> borrowed_;
  DiffusionTraits traits_;
  std::string description_;
};

}  // namespace trainer::flux2
