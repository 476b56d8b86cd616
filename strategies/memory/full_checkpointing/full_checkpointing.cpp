/// @file Full activation checkpointing (Chen et al. 2016): every block keeps its inputs only and is recomputed in
/// backward. The work is done by the SDK's recompute engine; this strategy only says where.
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/plugin.hpp>

namespace {

class EveryBlock final : public trainer::RecomputePolicy {
 public:
  explicit EveryBlock(bool elide) : elide_(elide) {}
  trainer::CheckpointOptions choose(const trainer::Site&) override {
    asked_ = true;
    return {.recompute = true, .elide = elide_};
  }
  void after_first_step() override {
    if (asked_) return;
    throw trainer::Error(
        trainer::ExitCode::bad_recipe,
        "memory.full_checkpointing: no block takes part in training (nothing in a block or before one is trained), so "
        "nothing can be recomputed; leave the strategy out");
  }

 private:
  bool asked_ = false;  ///< for a block that takes part
  bool elide_;
};

class FullCheckpointing final : public trainer::MemoryStrategy {
 public:
  explicit FullCheckpointing(const trainer::Options& options) : policy_(options.get<bool>("elide")) {}
  trainer::RecomputePolicy* recompute_policy() override { return &policy_; }

 private:
  EveryBlock policy_;
};

void init(trainer::Registrar& registrar) {
  registrar.add(trainer::MemoryComponent{
      "full_checkpointing", [](const trainer::Options& options) -> std::unique_ptr<trainer::MemoryStrategy> {
        return std::make_unique<FullCheckpointing>(options);
      }});
}

}  // namespace

TRAINER_PLUGIN("full_checkpointing", "0.1.0", init)
