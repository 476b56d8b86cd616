#include <base/units.hpp>
#include <recipe/write.hpp>
#include <planning/device_budgets.hpp>
#include <planning/recipe_budget.hpp>

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
    std::string granted;
    for (std::size_t i = 0; i < budgets.size(); ++i) {
      if (budgets[i] <= rest[i]) return std::nullopt;
      granted += (granted.empty() ? "\"" : "\", \"") + std::to_string(budgets[i] - rest[i]);
    }
    try {
      Plan plan = replan({"placement.budgets=[" + granted + "\"]"});
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

Replan replan_of(const assembly::Request& request, int ranks) {
  return [&request, ranks](const std::vector<std::string>& overrides) {
    assembly::Request changed = request;
    changed.overrides.insert(changed.overrides.end(), overrides.begin(), overrides.end());
    distributed::Place place;
    place.size = ranks;
    assembly::Assembly assembly(changed, assembly::Assembly::Use::plan, place);
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
