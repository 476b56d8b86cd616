#include <base/units.hpp>
#include <planning/device_budgets.hpp>
#include <planning/recipe_budget.hpp>
#include <recipe/write.hpp>

#include <algorithm>
#include <cctype>
#include <exception>
#include <limits>
#include <optional>

namespace trainer::planning {
namespace {

constexpr int kAttempts = 6;  // each moves blocks by what the one before was over

std::vector<int64_t> budgets_of(const recipe::Placement& placement) {
  std::vector<int64_t> budgets;
  if (!placement.options.has("budgets")) return budgets;
  for (const std::string& text : placement.options.list<std::string>("budgets")) {
    const bool unit = !text.empty() && std::isalpha(static_cast<unsigned char>(text.back())) != 0;
    // What is malformed is refused by the plugin.
    budgets.push_back(parse_bytes(unit ? text : text + "B").value_or(std::numeric_limits<int64_t>::max()));
  }
  return budgets;
}

bool keeps(const Plan& plan, const std::vector<int64_t>& budgets) {
  for (std::size_t i = 0; i < budgets.size() && i < plan.devices.size(); ++i)
    if (plan.devices[i].total() > budgets[i]) return false;
  return true;
}

recipe::Recipe with_budgets(recipe::Recipe recipe, const std::vector<int64_t>& budgets) {
  Array texts;
  for (const int64_t bytes : budgets) texts.push_back(Value{std::to_string(bytes)});
  Table options = recipe.placement.options.values();
  options["budgets"] = Value{std::move(texts)};
  recipe.placement.options = Options(recipe.placement.options.section(), std::move(options));
  return recipe;
}

std::string text_of(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

std::string uses(const Plan& plan, const std::vector<int64_t>& budgets) {
  std::string text;
  for (std::size_t i = 0; i < budgets.size() && i < plan.devices.size(); ++i) {
    const DevicePlan& device = plan.devices[i];
    text += (text.empty() ? "" : "; ") + device.device + " takes " + text_of(device.total()) + " (" +
            text_of(device.weights) + " of weights) of " + text_of(budgets[i]);
  }
  return text;
}

/// The names of the blocks with which the devices after the first begin: placement.at.
std::string cuts_of(const Plan& plan) {
  std::string text;
  for (std::size_t i = 1; i < plan.devices.size(); ++i) {
    const std::string& parts = plan.devices[i].parts;
    const std::string first = parts.substr(0, std::min(parts.find(" to "), parts.find(',')));
    text += (text.empty() ? "" : ", ") + recipe::in_quotes(first);
  }
  return "[" + text + "]";
}

/// A plan that keeps to the budgets.
std::optional<Plan> find_fitting(const Plan& first, const std::vector<int64_t>& budgets, const Replan& replan) {
  std::vector<int64_t> rest(budgets.size(), 0);  // the most that a device took besides weights
  const auto learn = [&rest](const Plan& plan) {
    for (std::size_t i = 0; i < rest.size() && i < plan.devices.size(); ++i)
      rest[i] = std::max(rest[i], plan.devices[i].total() - plan.devices[i].weights);
  };
  learn(first);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::vector<int64_t> granted;
    for (std::size_t i = 0; i < budgets.size(); ++i) {
      if (budgets[i] <= rest[i]) return std::nullopt;
      granted.push_back(budgets[i] - rest[i]);
    }
    try {
      Plan plan = replan(granted);
      if (keeps(plan, budgets)) return plan;
      learn(plan);
    } catch (const std::exception&) {  // no cut of the weights fits what the rest leaves
      return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace

bool limits_devices(const recipe::Placement& placement) { return !budgets_of(placement).empty(); }

Replan replan_of(const recipe::Recipe& recipe, plugin::Loader& plugins, int ranks) {
  return [&recipe, &plugins, ranks](const std::vector<int64_t>& budgets) {
    assembly::Assembly assembly(budgets.empty() ? recipe : with_budgets(recipe, budgets), plugins, ranks);
    choose_strategies(assembly);
    return make_plan(assembly, {}, ranks);
  };
}

void require_device_budgets(const recipe::Placement& placement, const Plan& plan, const Replan& replan) {
  const std::vector<int64_t> budgets = budgets_of(placement);
  if (keeps(plan, budgets)) return;
  const std::string over = placement.position.text() + ": placement.budgets: " + uses(plan, budgets);
  const bool by_hand = placement.options.has("at") && !placement.options.get<Array>("at").empty();
  const std::optional<Plan> fitting = by_hand ? std::nullopt : find_fitting(plan, budgets, replan);
  if (fitting)
    throw Error(ExitCode::bad_recipe,
                over + ". The cut was made by weights alone; with placement.at = " + cuts_of(*fitting) +
                    " everything fits: " + uses(*fitting, budgets),
                "BUDGET_SHORT");
  throw Error(ExitCode::bad_recipe,
              over +
                  (by_hand ? ". Other cuts in placement.at, or none, may fit; else less memory: "
                           : ". No cut of the blocks fits. Less memory: ") +
                  "memory.strategies = [\"fp8_weight_only\", \"full_checkpointing\"], a smaller "
                  "train.micro_batch_size or resolution; or another device",
              "BUDGET_SHORT");
}

}  // namespace trainer::planning
