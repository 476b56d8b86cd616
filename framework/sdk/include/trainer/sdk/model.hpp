/// @file A trainable model as strategies and placements see it: prologue -> blocks in order -> epilogue.
#pragma once

#include <trainer/sdk/layers.hpp>
#include <trainer/sdk/options.hpp>
#include <trainer/sdk/weights.hpp>

#include <functional>
#include <optional>
#include <span>

namespace trainer {

struct BlockInfo {
  std::string name;  ///< unique in the model, e.g. "double.3"
  std::string type;  ///< blocks of one type compute the same function of their inputs and weights, e.g. "double"
  std::vector<Linear> linears;           ///< every linear layer of the block
  std::vector<ParameterPtr> parameters;  ///< every other parameter of the block, frozen or trained
  /// Work of one forward per token of the model's whole sequence, for balancing devices. 0: that every token passes
  /// every linear layer, 2 in out operations each. To be set by a block whose layers share the tokens among them.
  double flops_per_token = 0;
};

/// One unit of recomputation, placement and weight residency. Pure: its output depends on its Flow, its parameters and
/// its frozen weights only, and it keeps nothing between calls. Not copyable, not movable.
class TRAINER_API Block {
 public:
  Block(std::string name, std::string type) { info_.name = std::move(name), info_.type = std::move(type); }
  virtual ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  [[nodiscard]] const BlockInfo& info() const { return info_; }
  /// The new carried tensors. Must not modify its inputs; must return fresh tensors or inputs passed through.
  virtual std::vector<at::Tensor> forward(const Flow& flow) = 0;
  /// Whether the block runs for this flow. A family of experts holds the blocks of all and says here, by a number that
  /// the prologue left in Flow::sizes, which chain runs. A block that does not is not called, moved or recomputed.
  [[nodiscard]] virtual bool takes_part(const Flow& /*flow*/) const { return true; }
  /// Trained tensors of the block, each once, in a fixed order.
  [[nodiscard]] std::vector<Parameter*> trainable() const;

 protected:
  /// Registers a layer or parameter as part of this block and returns it: `q_(own(build.linear(...)))`.
  Linear own(Linear linear);
  ParameterPtr own(ParameterPtr parameter);
  void set_flops_per_token(double flops) { info_.flops_per_token = flops; }

 private:
  BlockInfo info_;
};

/// Makes layers from the model's weights. Implemented by the host. Names are the model's canonical names; the source
/// behind the builder presents them (see ModelComponent::map_weights).
class TRAINER_API ModelBuilder {
 public:
  virtual ~ModelBuilder();
  /// Weight `name`.weight [out, in], and `name`.bias [out] when `bias`. Throws Error when missing or of another shape.
  virtual Linear linear(const std::string& name, int64_t in, int64_t out, bool bias = false) = 0;
  /// A parameter that is no linear weight, e.g. a norm's scale "transformer_blocks.0.attn.norm_q.weight".
  virtual ParameterPtr parameter(const std::string& name, const std::vector<int64_t>& shape) = 0;
  /// What is made from now on is not trained by this run: of a family of experts, those that only help in samples.
  void spare(bool on) { spared_ = on; }
  [[nodiscard]] virtual at::ScalarType dtype() const = 0;  ///< compute dtype of the model
  [[nodiscard]] virtual at::Device device() const = 0;

 protected:
  [[nodiscard]] bool spared() const { return spared_; }

 private:
  bool spared_ = false;
};

/// How a flow-matching model relates time, noise and its output; the objective and the sampler follow it.
struct DiffusionTraits {
  double time_at_noise = 1.0;               ///< model time of pure noise; data is at 1 - time_at_noise
  double velocity_sign = 1.0;               ///< +1: the output is noise - data; -1: data - noise
  int64_t latent_channels = 0;              ///< C of the latents [B, C, T, h, w]
  double noise_from = 0.0, noise_to = 1.0;  ///< levels that are trained (1: pure noise); an expert's share of [0, 1]
  bool guidance_embedded = false;  ///< guidance is an input "guidance" [B]; otherwise classifier-free guidance is used
  /// Training-time shift mu for a number of image tokens (the schedule is then e^mu t / (1 + (e^mu - 1) t)).
  std::function<double(int64_t tokens)> training_mu;
  /// Sampling sigmas for (image tokens, steps): steps + 1 values from 1 to 0.
  std::function<std::vector<double>(int64_t tokens, int64_t steps)> sigmas;
  /// Image tokens of latents with h x w cells in T frames.
  std::function<int64_t(int64_t frames, int64_t height, int64_t width)> tokens;
};

/// An input of the prologue, by name; matched at `check` against what the objective and the encoders provide.
struct InputSpec {
  std::string name, meaning;
  bool required = true;
  /// Of one sample, -1 for the one size that is free, e.g. {-1, 4096} for text states [L, J]. Needed where nothing but
  /// data or an encoder provides the input: `prove` and `plan` then know what to make or count without either.
  std::optional<std::vector<int64_t>> shape = std::nullopt;
  int64_t below = 0;  ///< > 0: integers in [0, below), e.g. token ids; 0: floating point
};

class TRAINER_API Model {
 public:
  virtual ~Model();
  [[nodiscard]] virtual std::vector<InputSpec> inputs() const = 0;
  virtual Flow prologue(const NamedTensors& inputs) = 0;
  /// In order of execution; borrowed, valid as long as the model.
  virtual std::span<Block* const> blocks() = 0;
  /// The prediction, e.g. the velocity [B, C, T, h, w].
  virtual at::Tensor epilogue(const Flow& flow) = 0;
  /// Elements [begin, end) of the prediction's last dimension: a slice of the vocabulary, for an objective whose whole
  /// prediction would be the largest tensor of all. By default cut from the whole.
  virtual at::Tensor epilogue_slice(const Flow& flow, int64_t begin, int64_t end);
  /// Null for a model that is not a diffusion model.
  [[nodiscard]] virtual const DiffusionTraits* diffusion() const { return nullptr; }
  /// Names of the layers and parameters that only the epilogue reads: a placement may put them, with the epilogue, on
  /// another device than the prologue. Nullopt: the model does not say, and the two stay together.
  [[nodiscard]] virtual std::optional<std::vector<std::string>> epilogue_layers() const { return std::nullopt; }
  /// Linear layers an adapter targets unless the recipe names others; glob patterns over canonical names.
  [[nodiscard]] virtual std::vector<std::string> default_targets() const { return {"*"}; }
  /// What the files turned out to be, one line for the user, e.g. "FLUX.2-dev, 8 + 48 blocks, 32.2 B parameters".
  [[nodiscard]] virtual std::string describe() const = 0;
};

/// A small model of the same code, by which `trainer plugins check` proves a model plugin without its published
/// weights: the host fills the tensors with keyed random numbers.
struct Miniature {
  std::string config;               ///< text of config.json, or ""
  std::vector<NamedShape> tensors;  ///< canonical names; sizes of some tens, two blocks of each type
};

/// What a model factory is given; borrowed for the call, except `build`'s products.
struct ModelContext {
  const Options& options;       ///< of the recipe's [model]
  const WeightSource& weights;  ///< canonical names (after map_weights); for detecting the variant by names and shapes
  const std::string& config;    ///< text of config.json beside the weights, or ""
  ModelBuilder& build;
};

}  // namespace trainer
