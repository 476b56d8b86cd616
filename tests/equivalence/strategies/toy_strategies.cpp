/// @file Strategies of a stranger, one source, one define each: one that keeps its promises and three that do not.
#include <ATen/core/Tensor.h>
#include <trainer/sdk/plugin.hpp>

namespace {

using namespace trainer;

#if defined(TOY_HONEST_STORE) || defined(TOY_ROUNDING_STORE)
/// Keeps the inputs of recomputed blocks as copies; the wrong one as bf16.
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
#elif defined(TOY_COUNTING_POLICY)
/// Recomputes every other time it is asked.
class Toy final : public MemoryStrategy, public RecomputePolicy {
 public:
  RecomputePolicy* recompute_policy() override { return this; }
  CheckpointOptions choose(const Site&) override { return {.recompute = calls_++ % 3 == 0}; }

 private:
  int calls_ = 0;
};
#endif

void init(Registrar& registrar) {
  registrar.add(MemoryComponent{
      TOY_NAME, [](const Options&) -> std::unique_ptr<MemoryStrategy> { return std::make_unique<Toy>(); }});
}

}  // namespace

TRAINER_PLUGIN(TOY_NAME, "0.1.0", init)
