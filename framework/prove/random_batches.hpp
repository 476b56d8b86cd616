/// @file Training data made from keys in the shapes that a model declares: proofs need no pictures and no encoders.
#pragma once

#include <execution/batch_source.hpp>

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace trainer::prove {

/// Sizes that the model leaves open.
struct Sizes {
  int64_t height = 4, width = 6;  ///< of the latents, in cells
  int64_t length = 5;             ///< of every other free size, e.g. text tokens
};

/// One sample's tensors, without the batch axis.
struct SampleShapes {
  std::vector<int64_t> latents;  ///< [C, 1, h, w]; empty: no diffusion model
  struct Input {
    std::vector<int64_t> shape;
    int64_t below = 0;  ///< > 0: integers in [0, below)
  };
  std::map<std::string, Input> conditioning;
  [[nodiscard]] std::string text() const;  ///< "latents [16, 1, 4, 6], prompt_embeds [5, 48]"
};

/// What data and encoders would have to bring. Throws Error (plugin_rejected) when a required input that the objective
/// does not provide has no declared shape.
SampleShapes shapes_of(const Model& model, const Objective& objective, const Sizes& sizes);

/// Thrown in place of a batch, as a failing disk would.
struct Interruption : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// `samples` a step in equal micro-batches, on `device`. Numbers depend on (seed, step, sample) alone.
class RandomBatches final : public execution::BatchSource {
 public:
  RandomBatches(SampleShapes shapes, int64_t samples, int64_t micro_batches, at::Device device, uint64_t seed);
  [[nodiscard]] int64_t micro_batches() const override { return micro_batches_; }
  Batch batch(int64_t step, int64_t micro) override;
  [[nodiscard]] std::vector<std::string> files(int64_t, int64_t) const override { return {"random numbers"}; }
  int64_t fail_at_micro = -1;  ///< >= 0: the next batch of this micro-batch is an Interruption, once

 private:
  SampleShapes shapes_;
  int64_t samples_, micro_batches_;
  at::Device device_;
  uint64_t seed_;
};

}  // namespace trainer::prove
