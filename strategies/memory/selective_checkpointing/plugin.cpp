/// @file Selective activation checkpointing: blocks are recomputed in backward, but for the outputs that the recipe
/// says to keep. After PyTorch's create_selective_checkpoint_contexts and torchtitan's policies, below autograd and for
/// any model; the work is the SDK's recompute engine.
#include <trainer/sdk/plugin.hpp>

#include "block_choice.hpp"
#include "save_list.hpp"

namespace {

using namespace trainer;

class SelectiveCheckpointing final : public MemoryStrategy, public RecomputePolicy {
 public:
  explicit SelectiveCheckpointing(const Options& options)
      : save_(options.list<std::string>("save")),
        blocks_(options.values().find("blocks")->second),
        elide_(options.get<bool>("elide")) {}
  RecomputePolicy* recompute_policy() override { return this; }
  CheckpointOptions choose(const Site& site) override {
    if (!blocks_.recomputed(site)) return {};
    return {.recompute = true, .save = &save_, .elide = elide_};
  }
  void after_first_step() override {
    blocks_.require_all_matched();  // first: where no block is recomputed, nothing of it can be kept
    save_.require_all_matched();
  }

 private:
  selective::SaveList save_;
  selective::BlockChoice blocks_;
  bool elide_;
};

void init(Registrar& registrar) {
  registrar.add(
      MemoryComponent{"selective_checkpointing", [](const Options& options) -> std::unique_ptr<MemoryStrategy> {
                        return std::make_unique<SelectiveCheckpointing>(options);
                      }});
}

}  // namespace

TRAINER_PLUGIN("selective_checkpointing", "0.1.0", init)
