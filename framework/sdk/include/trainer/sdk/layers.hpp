/// @file Parameters and linear layers as model plugins use them. The framework decides what a weight is (fp32, bf16,
/// fp8, ...), where it lives, whether it is trained and whether an adapter hangs on it; the model never knows.
#pragma once

#include <trainer/sdk/tensor.hpp>

#include <memory>

namespace trainer {

/// A named tensor slot. The model reads it through `get`; during a recompute or a stage-local forward the engine
/// substitutes an alias (ParameterSubstitution), so a model must not keep the returned tensor across calls.
class TRAINER_API Parameter {
 public:
  /// `value`: frozen data, or (with requires_grad) the trained leaf, fp32 unless the recipe says otherwise.
  Parameter(std::string name, at::Tensor value) : name_(std::move(name)), value_(std::move(value)) {}
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool trainable() const { return value_.requires_grad(); }
  /// What a forward reads.
  [[nodiscard]] const at::Tensor& get() const { return substitute_.defined() ? substitute_ : value_; }
  /// The same in `dtype`: a differentiable cast when the stored dtype differs (fp32 master under bf16 compute).
  [[nodiscard]] at::Tensor get(at::ScalarType dtype) const;
  /// The leaf itself: for the optimiser, checkpoints and export.
  [[nodiscard]] at::Tensor& value() { return value_; }
  [[nodiscard]] const at::Tensor& value() const { return value_; }

 private:
  friend class ParameterSubstitution;
  std::string name_;
  at::Tensor value_, substitute_;
};
using ParameterPtr = std::shared_ptr<Parameter>;

/// Substitutes tensors for parameters as long as it lives; restores on destruction, also during unwinding.
class TRAINER_API ParameterSubstitution {
 public:
  ParameterSubstitution(const std::vector<Parameter*>& parameters, const std::vector<at::Tensor>& substitutes);
  ~ParameterSubstitution();
  ParameterSubstitution(const ParameterSubstitution&) = delete;
  ParameterSubstitution& operator=(const ParameterSubstitution&) = delete;

 private:
  std::vector<Parameter*> parameters_;
  std::vector<at::Tensor> before_;
};

/// A weight [out, in] that is never trained, in whatever format a strategy packed it.
class TRAINER_API FrozenWeight {
 public:
  virtual ~FrozenWeight();
  /// x [M, in] of the compute dtype -> x W^T [M, out], of the same. Must not record autograd history.
  [[nodiscard]] virtual at::Tensor matmul(const at::Tensor& x) const = 0;
  /// g [M, out] -> g W [M, in], in g's dtype.
  [[nodiscard]] virtual at::Tensor grad_input(const at::Tensor& g) const = 0;
  /// The dense weight [out, in]. Allocates.
  [[nodiscard]] virtual at::Tensor dense(at::ScalarType dtype) const = 0;
  /// Bytes held on the device.
  [[nodiscard]] virtual int64_t bytes() const = 0;
  virtual void to(at::Device device) = 0;
  /// The tensors that hold the weight. A residency may put in place of each one of the same content, shape, strides and
  /// dtype elsewhere; between the runs of the block they need not hold anything.
  [[nodiscard]] virtual std::vector<at::Tensor*> tensors() = 0;
};

/// A frozen weight kept as a plain tensor in its compute dtype. What the host uses when no strategy packs a weight.
class TRAINER_API DenseWeight final : public FrozenWeight {
 public:
  explicit DenseWeight(at::Tensor weight) : weight_(std::move(weight)) {}
  [[nodiscard]] at::Tensor matmul(const at::Tensor& x) const override;
  [[nodiscard]] at::Tensor grad_input(const at::Tensor& g) const override;
  [[nodiscard]] at::Tensor dense(at::ScalarType dtype) const override;
  [[nodiscard]] int64_t bytes() const override;
  void to(at::Device device) override;
  [[nodiscard]] std::vector<at::Tensor*> tensors() override { return {&weight_}; }

 private:
  at::Tensor weight_;
};

/// What an adapter (LoRA, ...) adds to one linear layer.
class TRAINER_API LinearAdapter {
 public:
  virtual ~LinearAdapter();
  /// x [M, in] (input of the layer), y [M, out] (its output without the adapter) -> the layer's output, y's dtype.
  [[nodiscard]] virtual at::Tensor apply(const at::Tensor& x, const at::Tensor& y) const = 0;
  /// Trained tensors, in a fixed order; named "<layer>.lora_A.weight" and the like.
  [[nodiscard]] virtual std::vector<Parameter*> parameters() = 0;
};

/// State shared by all copies of one Linear. Filled by the host's ModelBuilder.
struct LinearState {
  std::string name;  ///< canonical module name, e.g. "transformer_blocks.0.attn.to_q"
  int64_t in = 0, out = 0;
  std::shared_ptr<FrozenWeight> frozen;    ///< either this
  ParameterPtr weight;                     ///< or this (trained) is set; neither when only headers were read
  ParameterPtr bias;                       ///< may be null
  std::unique_ptr<LinearAdapter> adapter;  ///< may be null
  bool adapter_enabled = true;             ///< off: the layer behaves as if it had no adapter
  bool spared = false;                     ///< no part of what this run trains (ModelBuilder::spare): gets no adapter
};

/// A linear layer, by handle: y = x W^T (+ b), plus the adapter's part. Always computed on 2-D data, so that the same
/// kernel runs with and without gradients (a 3-D matmul folds differently in the two modes).
class TRAINER_API Linear {
 public:
  Linear() = default;
  explicit Linear(std::shared_ptr<LinearState> state) : state_(std::move(state)) {}
  /// x [..., in] -> [..., out], in x's dtype.
  at::Tensor operator()(const at::Tensor& x) const;
  [[nodiscard]] LinearState& state() const { return *state_; }
  [[nodiscard]] const std::string& name() const { return state_->name; }
  /// Trained tensors of this layer: weight, bias, adapter.
  [[nodiscard]] std::vector<Parameter*> trainable() const;

 private:
  std::shared_ptr<LinearState> state_;
};

/// x [M, in] W^T with a frozen weight as an autograd node that saves nothing but the handle.
TRAINER_API at::Tensor frozen_linear(const at::Tensor& x, const std::shared_ptr<FrozenWeight>& weight);

}  // namespace trainer
