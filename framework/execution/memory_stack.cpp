#include <execution/checked_strategies.hpp>
#include <execution/dry_store.hpp>
#include <execution/guarded_strategies.hpp>
#include <execution/memory_stack.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>

namespace trainer::execution {
namespace {

std::string in_words(const MemoryStack::Named& one) {
  return "\"" + one.name + "\"" + (one.changed.empty() ? "" : " (" + one.changed + ")");
}

void refuse_conflicts(const MemoryStack::Named& one, const std::vector<MemoryStack::Named>& all) {
  for (const auto& [other, reason] : one.strategy->conflicts())
    for (const MemoryStack::Named& present : all)
      if (present.name == other)
        throw Error(ExitCode::bad_recipe,
                    "memory.strategies: \"" + one.name + "\" cannot be combined with \"" + other + "\": " + reason);
}

[[noreturn]] void refuse_two(const MemoryStack::Named& first, const MemoryStack::Named& second, const char* do_both) {
  const bool defaults = first.changed.empty() && second.changed.empty();
  throw Error(ExitCode::bad_recipe, "memory.strategies: " + in_words(first) + " and " + in_words(second) + " both " +
                                        do_both + "; keep one of them" +
                                        (defaults ? "" : ", or change what is set in [memory.NAME]"));
}

using Promises = MemoryStack::Promises;

/// The part of a strategy as the run calls it: what it throws names the strategy, and where promises are checked, each
/// call is held to them.
std::unique_ptr<WeightFormat> wrapped(WeightFormat& part, const MemoryStack::Named& owner, Promises promises) {
  auto guarded = std::make_unique<GuardedFormat>(part, owner.name);
  if (promises == Promises::trusted) return guarded;
  return std::make_unique<CheckedFormat>(std::move(guarded), owner.name, owner.rounding);
}

std::unique_ptr<WeightResidency> wrapped(WeightResidency& part, const MemoryStack::Named& owner, Promises promises) {
  auto guarded = std::make_unique<GuardedResidency>(part, owner.name);
  if (promises == Promises::trusted) return guarded;
  return std::make_unique<CheckedResidency>(std::move(guarded), owner.name);
}

std::unique_ptr<ActivationStore> wrapped(ActivationStore& part, const MemoryStack::Named& owner, Promises promises) {
  auto guarded = std::make_unique<GuardedStore>(part, owner.name);
  if (promises == Promises::trusted) return guarded;
  return std::make_unique<CheckedStore>(std::move(guarded), owner.name);
}

/// A policy's one promise, to answer by the site alone, is checked by every run (MemoryStack::run_at).
std::unique_ptr<RecomputePolicy> wrapped(RecomputePolicy& part, const MemoryStack::Named& owner, Promises) {
  return std::make_unique<GuardedPolicy>(part, owner.name);
}

}  // namespace

template <class Part>
void MemoryStack::take(Slot<Part>& slot, const Named& one, Part* offered, const char* does, Promises promises) {
  if (offered == nullptr) return;
  if (slot.part != nullptr) refuse_two(named(slot.name), one, does);
  slot = {one.name, wrapped(*offered, one, promises)};
}

MemoryStack::MemoryStack(std::vector<Named> strategies, Promises promises) : strategies_(std::move(strategies)) {
  for (const Named& one : strategies_)
    if (one.strategy == nullptr) throw PluginError(one.name, "create", "the plugin made no memory strategy");
  for (const Named& one : strategies_) {
    refuse_conflicts(one, strategies_);
    MemoryStrategy& offers = *one.strategy;
    RecomputePolicy* const policy = offers.recompute_policy();
    take(format_, one, offers.weight_format(), "pack weights", promises);
    take(residency_, one, offers.weight_residency(), "move weights between memories", promises);
    take(store_, one, offers.activation_store(), "store the inputs of blocks", promises);
    take(policy_, one, policy, "choose what is recomputed", promises);
    whole_model_ = whole_model_ || dynamic_cast<WholeModelPolicy*>(policy) != nullptr;
  }
}

const MemoryStack::Named& MemoryStack::named(const std::string& name) const {
  return *std::find_if(strategies_.begin(), strategies_.end(), [&](const Named& one) { return one.name == name; });
}

std::string MemoryStack::format_identity() const {
  return format_.part == nullptr ? "" : execution::format_identity(format_.name, named(format_.name).settings);
}

std::string MemoryStack::idle() const {
  if (store_.part == nullptr || policy_.part != nullptr) return "";
  return "memory.strategies: \"" + store_.name +
         "\" does nothing here: it keeps the inputs of recomputed blocks elsewhere, and no strategy recomputes any; "
         "add \"full_checkpointing\" or \"selective_checkpointing\"";
}

void MemoryStack::after_first_step() const {
  if (policy_.part != nullptr && !partial_) policy_.part->after_first_step();
}

void MemoryStack::keep_packing_only() {
  residency_ = {};
  store_ = {};
  policy_ = {};
}

void MemoryStack::store_on_shapes(at::Device host) {
  if (store_.part != nullptr) store_.part = std::make_unique<DryStore>(host);
}

BlockRun MemoryStack::run_at(const Site& site, const Site* part, RecomputeState* state) const {
  BlockRun run;
  run.site = site;
  const Site* const asked = whole_model_ ? &site : part;
  if (policy_.part != nullptr && asked != nullptr) {
    run.options = policy_.part->choose(*asked);
    const auto [known, fresh] =
        answers_.try_emplace({site.block->info().name, asked->index, asked->count}, run.options);
    const CheckpointOptions& before = known->second;
    if (before.recompute != run.options.recompute || (before.save == nullptr) != (run.options.save == nullptr) ||
        before.elide != run.options.elide)
      throw PluginError(policy_.name, "choose",
                        "it answers differently for block \"" + site.block->info().name +
                            "\" than before; the answer must depend on the site alone");
  }
  run.store = store();
  run.residency = residency();
  run.state = state;
  return run;
}

}  // namespace trainer::execution
