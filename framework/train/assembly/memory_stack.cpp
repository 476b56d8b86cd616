#include <train/assembly/memory_stack.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::train {

MemoryStack::MemoryStack(std::vector<Named> strategies) : strategies_(std::move(strategies)) {
  std::map<std::string, std::string> owners;
  const auto take = [&](auto*& place, auto* offered, const std::string& what, const std::string& name) {
    if (offered == nullptr) return;
    if (place != nullptr)
      throw Error(ExitCode::bad_recipe, "memory.strategies: \"" + owners[what] + "\" and \"" + name + "\" both " +
                                            what + "; keep one of them");
    place = offered;
    owners[what] = name;
  };
  for (const auto& [name, strategy, settings, rounding] : strategies_)
    if (strategy == nullptr) throw PluginError(name, "create", "the plugin made no memory strategy");
  for (const auto& [name, strategy, settings, rounding] : strategies_) {
    for (const auto& [other, reason] : strategy->conflicts())
      for (const auto& present : strategies_)
        if (present.name == other)
          throw Error(ExitCode::bad_recipe,
                      "memory.strategies: \"" + name + "\" cannot be combined with \"" + other + "\": " + reason);
    take(format_, strategy->weight_format(), "pack weights", name);
    if (strategy->weight_format() != nullptr) format_name_ = name + " " + settings;
    take(residency_, strategy->weight_residency(), "move weights between memories", name);
    take(store_, strategy->activation_store(), "store the inputs of blocks", name);
    take(policy_, strategy->recompute_policy(), "choose what is recomputed", name);
  }
  policy_name_ = owners["choose what is recomputed"];
  store_name_ = owners["store the inputs of blocks"];
  residency_name_ = owners["move weights between memories"];
}

void MemoryStack::check_promises() {
  for (const auto& [name, strategy, settings, rounding] : strategies_) {
    if (format_ == nullptr || strategy->weight_format() != format_) continue;
    checked_format_ = std::make_unique<CheckedFormat>(*format_, name, rounding);
    format_ = checked_format_.get();
    break;
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

BlockRun MemoryStack::run_at(const Site& site, RecomputeState* state) const {
  BlockRun run;
  run.site = site;
  if (policy_ != nullptr) {
    run.options = policy_->choose(site);
    const auto [known, fresh] = answers_.try_emplace({site.block->info().name, site.index, site.count}, run.options);
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

}  // namespace trainer::train
