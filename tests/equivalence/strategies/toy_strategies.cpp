/// @file Strategies of a stranger, one source, one define each: three that keep their promises and six that do not.
#include <ATen/core/Tensor.h>
#include <trainer/sdk/plugin.hpp>

#include <stdexcept>

namespace {

using namespace trainer;

#if defined(TOY_HONEST_STORE) || defined(TOY_ROUNDING_STORE) || defined(TOY_FAILING_STORE)
/// Keeps the inputs of recomputed blocks as copies; the wrong one as bf16; the failing one gives no stream of
/// fp32 back.
class Toy final : public MemoryStrategy, public ActivationStore {
 public:
  ActivationStore* activation_store() override { return this; }
  std::shared_ptr<void> put(const at::Tensor& tensor, const Site&) override {
    if (!tensor.defined()) return std::make_shared<at::Tensor>();
#if defined(TOY_ROUNDING_STORE)
    if (tensor.scalar_type() == at::kFloat)
      return std::make_shared<at::Tensor>(tensor.detach().to(at::kBFloat16).to(at::kFloat));
#endif
    return std::make_shared<at::Tensor>(tensor.detach().clone());
  }
  at::Tensor take(const std::shared_ptr<void>& handle, const Site&) override {
#if defined(TOY_FAILING_STORE)
    const at::Tensor& kept = *std::static_pointer_cast<at::Tensor>(handle);
    if (kept.defined() && kept.dim() == 3 && kept.scalar_type() == at::kFloat)
      throw std::runtime_error("the store is gone");
#endif
    return *std::static_pointer_cast<at::Tensor>(handle);
  }
};
#elif defined(TOY_STALE_RESIDENCY)
/// Swaps nothing, and leaves the first block's weight in the second block of its type.
class Toy final : public MemoryStrategy, public WeightResidency {
 public:
  WeightResidency* weight_residency() override { return this; }
  void plan(std::span<Block* const> blocks) override {
    const auto first = blocks[0]->info().linears;
    for (const Linear& linear : first) first_.push_back(linear.state().frozen);
    type_ = blocks[0]->info().type;
  }
  void before(const Site& site, Pass) override {
    if (site.index == 0 || site.block->info().type != type_) return;
    for (std::size_t i = 0; i < first_.size(); ++i) site.block->info().linears[i].state().frozen = first_[i];
  }
  void after(const Site&, Pass) noexcept override {}

 private:
  std::vector<std::shared_ptr<FrozenWeight> > first_;
  std::string type_;
};
#elif defined(TOY_COUNTING_POLICY) || defined(TOY_HONEST_POLICY)
/// The wrong one recomputes every third time it is asked. The honest one recomputes all blocks and keeps attention and
/// every third other call of a block, which none of our own candidates does: at some budgets the planner needs it.
class Toy final : public MemoryStrategy, public RecomputePolicy, public SavePolicy {
 public:
  RecomputePolicy* recompute_policy() override { return this; }
#if defined(TOY_COUNTING_POLICY)
  CheckpointOptions choose(const Site&) override { return {.recompute = calls_++ % 3 == 0}; }
#else
  CheckpointOptions choose(const Site&) override { return {.recompute = true, .save = this, .elide = true}; }
#endif
  bool keep(const HeavyOp& op) override {
    return op.op.find("scaled_dot_product") != std::string::npos || op.position % 3 == 0;
  }

#if defined(TOY_COUNTING_POLICY)

 private:
  int calls_ = 0;
#endif
};
#elif defined(TOY_WRONG_FORMAT) || defined(TOY_COARSE_FORMAT) || defined(TOY_ROUNDED_FORMAT)
/// A weight that is held as it is. The rounded one multiplies in bf16, as its manifest says; the wrong one has another
/// gradient than its weight; the coarse one holds another weight, and is one with itself about it.
class Held final : public FrozenWeight {
 public:
  explicit Held(at::Tensor weight) : weight_(std::move(weight)) {}
  at::Tensor matmul(const at::Tensor& x) const override { return product(x, dense(x.scalar_type()).t()); }
  at::Tensor grad_input(const at::Tensor& g) const override {
    const at::Tensor gradient = product(g, dense(g.scalar_type()));
#if defined(TOY_WRONG_FORMAT)
    return gradient.mul(-7);
#else
    return gradient;
#endif
  }
  at::Tensor dense(at::ScalarType dtype) const override { return weight_.to(dtype); }
  int64_t bytes() const override { return static_cast<int64_t>(weight_.nbytes()); }
  void to(at::Device device) override { weight_ = weight_.to(device); }
  std::vector<at::Tensor*> tensors() override { return {&weight_}; }

 private:
  static at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
#if defined(TOY_ROUNDED_FORMAT)
    return a.to(at::kBFloat16).matmul(b.to(at::kBFloat16)).to(a.scalar_type());
#else
    return a.matmul(b);
#endif
  }
  at::Tensor weight_;
};
class Toy final : public MemoryStrategy, public WeightFormat {
 public:
  WeightFormat* weight_format() override { return this; }
  std::unique_ptr<FrozenWeight> pack(const LinearState&, const std::string& name, WeightSource& source,
                                     at::ScalarType compute) override {
    at::Tensor weight = source.read(name).to(compute);
#if defined(TOY_COARSE_FORMAT)
    weight = weight.mul(3);
#endif
    return std::make_unique<Held>(weight.clone());
  }
};
#endif

void init(Registrar& registrar) {
  registrar.add(MemoryComponent{
      TOY_NAME, [](const Options&) -> std::unique_ptr<MemoryStrategy> { return std::make_unique<Toy>(); }});
}

}  // namespace

TRAINER_PLUGIN(TOY_NAME, "0.1.0", init)
