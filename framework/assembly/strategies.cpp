#include <assembly/planned.hpp>
#include <assembly/strategies.hpp>
#include <recipe/options_identity.hpp>
#include <recipe/write.hpp>

#include <algorithm>

namespace trainer::assembly {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// `keep = "block", granularity = "tensor"`: what a recipe says beyond the defaults of a memory strategy.
std::string changed_options(const recipe::ComponentSchema& schema, const recipe::Component& component) {
  std::string text;
  for (const recipe::OptionSpec& spec : schema.options) {
    const auto given = component.options.values().find(spec.key);
    if (given == component.options.values().end() || recipe::equal(given->second, spec.fallback)) continue;
    text += (text.empty() ? "" : ", ") + spec.key + " = " + recipe::toml_text(given->second);
  }
  return text;
}

}  // namespace

std::vector<std::string> Strategies::names() const {
  if (!plan_) return components_.recipe().memory.strategies;
  if (plan_->format == "none") return {kBudget};
  return {plan_->format, kBudget};
}

std::vector<std::string> Strategies::packing() {
  if (plan_) return plan_->format == "none" ? std::vector<std::string>{} : std::vector{plan_->format};
  std::vector<std::string> names;
  for (const recipe::Component& component : components_.recipe().memory.components)
    if (components_.memory_strategy(component)->weight_format() != nullptr) names.push_back(component.kind);
  return names;
}

recipe::Tolerance Strategies::tolerance_of(const std::string& strategy) const {
  return plugin::schema_of(components_.plugins().found(), "memory", planner::strategy_of(strategy)).tolerance;
}

execution::MemoryStack Strategies::stack() { return stack(names()); }

execution::MemoryStack Strategies::stack(const std::vector<std::string>& names, Promises promises) {
  if (plan_) return planned_stack(names, promises);
  std::vector<execution::MemoryStack::Named> strategies;
  for (const recipe::Component& component : components_.recipe().memory.components) {
    if (!contains(names, component.kind)) continue;
    const recipe::ComponentSchema& schema = plugin::schema_of(components_.plugins().found(), "memory", component.kind);
    strategies.push_back({component.kind, components_.memory_strategy(component),
                          recipe::options_identity(component.options, schema), schema.tolerance.rounding,
                          changed_options(schema, component)});
  }
  return execution::MemoryStack(std::move(strategies), promises);
}

execution::MemoryStack Strategies::planned_stack(const std::vector<std::string>& names, Promises promises) {
  Candidates candidates = make_candidates(components_.plugins());
  std::vector<execution::MemoryStack::Named> strategies;
  bool found = plan_->format == "none";
  for (CandidateStrategy& format : candidates.formats) {
    if (format.label != plan_->format) continue;
    found = true;
    if (contains(names, plan_->format))
      strategies.push_back(
          {format.name, std::move(format.strategy), format.settings, tolerance_of(format.name).rounding});
  }
  if (!found)
    throw Error(ExitCode::bad_input,
                "the plan packs weights with \"" + plan_->format + "\", which no plugin of this program offers now");
  auto recompute = std::make_unique<PlannedRecompute>(std::move(candidates.recompute));
  recompute->set(*plan_);
  if (contains(names, kBudget)) strategies.push_back({kBudget, std::move(recompute)});
  return execution::MemoryStack(std::move(strategies), promises);
}

}  // namespace trainer::assembly
