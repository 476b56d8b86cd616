/// @file The four places where a memory strategy can act. A strategy plugin fills one or more of them, so strategies
/// compose by construction; two that want the same place are reported at `check`.
#pragma once

#include <trainer/sdk/model.hpp>

namespace trainer {

enum class Pass { forward, backward };

/// One execution of a block within a step.
struct Site {
  const Block* block = nullptr;
  int64_t index = 0, count = 0;  ///< its place among the blocks that take part in training, and their number
  int64_t micro_batch = 0;
};

/// Packs weights that are never trained. At most one in a run.
class TRAINER_API WeightFormat {
 public:
  virtual ~WeightFormat();
  /// Null: this weight stays dense. `compute` is the model's dtype; the tensor is read from `source` as `name`.
  virtual std::unique_ptr<FrozenWeight> pack(const LinearState& linear, const std::string& name, WeightSource& source,
                                             at::ScalarType compute) = 0;
  /// Bytes of what `pack` would make of the layer (of its dense weight, where it would make none), before anything is
  /// read: what placements weigh.
  [[nodiscard]] virtual int64_t bytes(const LinearState& linear, at::ScalarType compute) const;
};

/// Moves weights between memories around the use of a block (block swap). At most one in a run. What it may move is
/// what FrozenWeight::tensors names: all else of a block is read through tensors that autograd may hold on to.
class TRAINER_API WeightResidency {
 public:
  virtual ~WeightResidency();
  /// Called once before the first step with the chain in execution order.
  virtual void plan(std::span<Block* const> blocks) = 0;
  /// Called around every run of a block; `Pass::backward` brackets a recompute together with the backward, or what
  /// autograd runs of a block that is not recomputed. When a step dies, `after` comes at the latest when its graph is
  /// freed, so several blocks may be in use at once for a moment.
  virtual void before(const Site& site, Pass pass) = 0;
  virtual void after(const Site& site, Pass pass) noexcept = 0;
};

/// Keeps the inputs of checkpointed blocks elsewhere (host memory, disk). At most one in a run.
class TRAINER_API ActivationStore {
 public:
  virtual ~ActivationStore();
  /// Takes over a tensor; the returned handle owns it, and its release is the tensor's. Contents must come back bit for
  /// bit on the same device. A shared tensor of the flow comes once for each block that reads it, as the same tensor.
  virtual std::shared_ptr<void> put(const at::Tensor& tensor, const Site& site) = 0;
  /// May be called more than once per handle (retain_graph).
  virtual at::Tensor take(const std::shared_ptr<void>& handle, const Site& site) = 0;
};

/// One heavy operation of a block's forward: a matrix product, a convolution, an attention or a frozen linear.
struct HeavyOp {
  std::string block_type;  ///< e.g. "single"
  std::string op;          ///< ATen's name, e.g. "mm", or "frozen_linear"
  std::string arguments;   ///< shapes, dtypes and numbers, e.g. "(Float[48, 192], Float[192, 192])"
  int64_t index = 0;       ///< which call of this op within the block's forward, from 0
  int64_t position = 0;    ///< which heavy call of any op, from 0
  double flops = 0;
};

/// Decides which outputs of heavy operations a recomputed block keeps (selective checkpointing). All others are
/// recomputed. Must answer the same for the same operation.
class TRAINER_API SavePolicy {
 public:
  virtual ~SavePolicy();
  virtual bool keep(const HeavyOp& op) = 0;
};

/// How one block is run.
struct CheckpointOptions {
  bool recompute = false;      ///< false: autograd keeps what it needs; true: keep the inputs, recompute in backward
  SavePolicy* save = nullptr;  ///< with recompute: outputs kept as well; null: none
  bool elide = false;          ///< with recompute: do not recompute heavy operations whose value nothing reads
};

/// Chooses for every block how it is run. At most one in a run.
class TRAINER_API RecomputePolicy {
 public:
  virtual ~RecomputePolicy();
  /// Must depend on the site alone, so that every micro-batch of a step is treated alike.
  virtual CheckpointOptions choose(const Site& site) = 0;
  /// Called after the first step: throws Error (bad_recipe) when a setting had no effect (a name that matched nothing).
  virtual void after_first_step() {}
};

/// What a memory strategy plugin makes: each accessor is null or an object owned by the strategy.
class TRAINER_API MemoryStrategy {
 public:
  virtual ~MemoryStrategy();
  virtual WeightFormat* weight_format() { return nullptr; }
  virtual WeightResidency* weight_residency() { return nullptr; }
  virtual ActivationStore* activation_store() { return nullptr; }
  virtual RecomputePolicy* recompute_policy() { return nullptr; }
  /// Names of strategies this one cannot be combined with, with a reason each.
  [[nodiscard]] virtual std::map<std::string, std::string> conflicts() const { return {}; }
};

}  // namespace trainer
