#include <execution/memory_stack.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::execution {
namespace {

std::string in_words(const MemoryStack::Named& one) {
  return "\"" + one.name + "\"" + (one.changed.empty() ? "" : " (" + one.changed + ")");
}

}  // namespace

MemoryStack::MemoryStack(std::vector<Named> strategies) : strategies_(std::move(strategies)) {
  for (const Named& one : strategies_)
    if (one.strategy == nullptr) throw PluginError(one.name, "create", "the plugin made no memory strategy");
  std::map<std::string, const Named*> owners;
  const auto take = [&](auto*& place, auto* offered, const std::string& what, const Named& one) {
    if (offered == nullptr) return;
    const Named*& owner = owners[what];
    if (place != nullptr)
      throw Error(
          ExitCode::bad_recipe,
          "memory.strategies: " + in_words(*owner) + " and " + in_words(one) + " both " + what + "; keep one of them" +
              (owner->changed.empty() && one.changed.empty() ? "" : ", or change what is set in [memory.NAME]"));
    place = offered;
    owner = &one;
  };
  for (const Named& one : strategies_) {
    for (const auto& [other, reason] : one.strategy->conflicts())
      for (const auto& present : strategies_)
        if (present.name == other)
          throw Error(ExitCode::bad_recipe,
                      "memory.strategies: \"" + one.name + "\" cannot be combined with \"" + other + "\": " + reason);
    take(format_, one.strategy->weight_format(), "pack weights", one);
    if (one.strategy->weight_format() != nullptr) format_name_ = one.name + " " + one.settings;
    take(residency_, one.strategy->weight_residency(), "move weights between memories", one);
    take(store_, one.strategy->activation_store(), "store the inputs of blocks", one);
    take(policy_, one.strategy->recompute_policy(), "choose what is recomputed", one);
  }
  const auto name_of = [&](const std::string& what) { return owners[what] != nullptr ? owners[what]->name : ""; };
  whole_model_ = dynamic_cast<const WholeModelPolicy*>(policy_) != nullptr;
  policy_name_ = name_of("choose what is recomputed");
  store_name_ = name_of("store the inputs of blocks");
  residency_name_ = name_of("move weights between memories");
  packer_ = owners["pack weights"];
  if (format_ != nullptr) {
    guarded_format_ = std::make_unique<GuardedFormat>(*format_, packer_->name);
    format_ = guarded_format_.get();
  }
  if (policy_ != nullptr) guarded_policy_ = GuardedPolicy(*policy_, policy_name_);
  if (store_ != nullptr) {
    guarded_store_ = std::make_unique<GuardedStore>(*store_, store_name_);
    store_ = guarded_store_.get();
  }
  if (residency_ != nullptr) {
    guarded_residency_ = std::make_unique<GuardedResidency>(*residency_, residency_name_);
    residency_ = guarded_residency_.get();
  }
}

std::string MemoryStack::idle() const {
  if (store_ == nullptr || policy_ != nullptr) return "";
  return "memory.strategies: \"" + store_name_ +
         "\" does nothing here: it keeps the inputs of recomputed blocks elsewhere, and no strategy recomputes any; "
         "add "
         "\"full_checkpointing\" or \"selective_checkpointing\"";
}

void MemoryStack::check_promises() {
  if (format_ != nullptr) {
    checked_format_ = std::make_unique<CheckedFormat>(*format_, packer_->name, packer_->rounding);
    format_ = checked_format_.get();
  }
  if (store_ != nullptr) {
    checked_store_ = std::make_unique<CheckedStore>(*store_, store_name_);
    store_ = checked_store_.get();
  }
  if (residency_ != nullptr) {
    checked_residency_ = std::make_unique<CheckedResidency>(*residency_, residency_name_);
    residency_ = checked_residency_.get();
  }
}

BlockRun MemoryStack::run_at(const Site& site, const Site* part, RecomputeState* state) const {
  BlockRun run;
  run.site = site;
  const Site* const asked = whole_model_ ? &site : part;
  if (policy_ != nullptr && asked != nullptr) {
    run.options = guarded_policy_.choose(*asked);
    const auto [known, fresh] =
        answers_.try_emplace({site.block->info().name, asked->index, asked->count}, run.options);
    const CheckpointOptions& before = known->second;
    if (before.recompute != run.options.recompute || (before.save == nullptr) != (run.options.save == nullptr) ||
        before.elide != run.options.elide)
      throw PluginError(policy_name_, "choose",
                        "it answers differently for block \"" + site.block->info().name +
                            "\" than before; the answer must depend on the site alone");
  }
  run.store = store_;
  run.residency = residency_;
  run.state = state;
  return run;
}

}  // namespace trainer::execution
