/// @file A diffusion model of three small blocks with weights made from keys, for tests of the training loop.
#pragma once

#include <trainer/sdk/model.hpp>

#include <memory>
#include <vector>

namespace trainer::testing {

struct ToySizes {
  int64_t channels = 3, width = 6, text = 4, blocks = 2;
  bool guidance = false;
  double time_at_noise = 1.0, velocity_sign = 1.0;
};

/// Weights of a toy model by canonical name ("embed.weight", "block.0.up.weight", ..., "norm.weight").
NamedTensors toy_weights(const ToySizes& sizes, uint64_t seed = 1);

/// Inputs: latents [B, C, 1, h, w], timestep [B], prompt_embeds [B, L, J] (optional), guidance [B] (when embedded).
class ToyModel final : public Model {
 public:
  ToyModel(ModelBuilder& build, const ToySizes& sizes);
  [[nodiscard]] std::vector<InputSpec> inputs() const override;
  Flow prologue(const NamedTensors& inputs) override;
  std::span<Block* const> blocks() override { return borrowed_; }
  at::Tensor epilogue(const Flow& flow) override;
  [[nodiscard]] const DiffusionTraits* diffusion() const override { return is_diffusion ? &traits_ : nullptr; }
  [[nodiscard]] std::vector<std::string> default_targets() const override { return {"block.*"}; }
  [[nodiscard]] std::string describe() const override { return "toy"; }

  bool is_diffusion = true;

 private:
  ToySizes sizes_;
  Linear embed_, text_, time_, head_;
  ParameterPtr norm_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Block*> borrowed_;
  DiffusionTraits traits_;
};

}  // namespace trainer::testing
