#include <assembly/planned.hpp>
#include <plugin/guard.hpp>
#include <recipe/options_identity.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::assembly {

Candidates make_candidates(plugin::Loader& loader) {
  Candidates candidates;
  for (const plugin::Manifest& manifest : loader.found().manifests) {
    const std::string& name = manifest.schema.name;
    if (manifest.schema.kind != "memory" || manifest.schema.candidates.empty()) continue;
    loader.require("memory", name);
    for (const recipe::Candidate& one : manifest.schema.candidates) {
      const Options options("memory." + name, one.options);
      CandidateStrategy made{name, name + (one.text.empty() ? "" : " " + one.text),
                             recipe::options_identity(options, manifest.schema), nullptr};
      made.strategy =
          plugin::guard(name, "create", [&] { return loader.registry().memory.find(name)->second.create(options); });
      if (made.strategy == nullptr) throw PluginError(name, "create", "the plugin made no memory strategy");
      MemoryStrategy& s = *made.strategy;
      const bool recomputes = s.recompute_policy() != nullptr, packs = s.weight_format() != nullptr;
      if (recomputes == packs || s.weight_residency() != nullptr || s.activation_store() != nullptr)
        throw PluginError(
            name, "create",
            "its manifest offers it to the planner ([[candidate]]), which chooses only between strategies "
            "that either recompute or pack weights");
      (recomputes ? candidates.recompute : candidates.formats).push_back(std::move(made));
    }
  }
  return candidates;
}

bool compatible(const CandidateStrategy& a, const CandidateStrategy& b) {
  return !a.strategy->conflicts().contains(b.name) && !b.strategy->conflicts().contains(a.name);
}

CheckpointOptions PlannedRecompute::options(std::size_t way, const Site& site) {
  if (way == 0) return {};
  const CandidateStrategy& one = candidates_[way - 1];
  return plugin::guard(one.name, "choose", [&] { return one.strategy->recompute_policy()->choose(site); });
}

std::size_t PlannedRecompute::way(const std::string& name) const {
  for (std::size_t i = 0; i < ways(); ++i)
    if (label(i) == name) return i;
  throw Error(ExitCode::bad_input, "the plan uses \"" + name + "\", which no plugin of this program offers now");
}

void PlannedRecompute::set(const planner::BudgetPlan& plan) {
  for (const planner::PlannedBlock& block : plan.blocks) by_block_[block.name] = way(block.way);
}

CheckpointOptions PlannedRecompute::choose(const Site& site) {
  if (!by_block_.empty()) {
    const auto planned = by_block_.find(site.block->info().name);
    if (planned == by_block_.end())
      throw Error(ExitCode::bad_input, "the plan for memory.budget is of another model: it does not name every block");
    return options(planned->second, site);
  }
  const auto index = static_cast<std::size_t>(site.index);
  return options(index < ways_.size() ? ways_[index] : 0, site);
}

}  // namespace trainer::assembly
