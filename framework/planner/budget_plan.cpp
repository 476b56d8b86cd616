#include <base/json_depth.hpp>
#include <base/units.hpp>
#include <nlohmann/json.hpp>
#include <planner/budget_plan.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <stdexcept>

namespace trainer::planner {
namespace {

using Json = nlohmann::ordered_json;

/// Cells padded to the widest of their column.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = "  ";
    for (std::size_t i = 0; i < row.size(); ++i) line += row[i] + std::string(widths[i] + 2 - row[i].size(), ' ');
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string bytes(int64_t count) { return format_bytes(static_cast<double>(count)); }

std::string kept_text(const planner::BlockCost& cost) {
  std::string text;
  for (const std::string& op : cost.kept_ops)
    text += (text.empty() ? "" : " ") + op + (cost.unread_ops.contains(op) ? "*" : "");
  return text.empty() ? "-" : text;
}

/// A number of bytes or of work; what another program wrote may be anything.
int64_t count_in(const Json& json) {
  if (json.is_number_integer() && !(json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) &&
      json.get<int64_t>() >= 0)
    return json.get<int64_t>();
  throw std::out_of_range(json.dump() + " where a whole number of bytes is due");
}

}  // namespace

std::string describe(const BudgetPlan& plan) {
  std::vector<std::vector<std::string>> rows{{"blocks", "run with", "kept, each", "recomputed, each"}};
  for (std::size_t i = 0; i < plan.blocks.size();) {
    const PlannedBlock& first = plan.blocks[i];
    std::size_t end = i + 1;
    while (end < plan.blocks.size() && plan.blocks[end].type == first.type && plan.blocks[end].way == first.way) ++end;
    const std::string& last = plan.blocks[end - 1].name;
    // The last of the row speaks for it: a chain's first block may keep less, since its inputs need no gradient.
    rows.push_back({first.name + (end - i > 1 ? " ... " + last : ""), first.way, bytes(plan.blocks[end - 1].kept),
                    format_flops(plan.blocks[end - 1].recomputed_flops)});
    i = end;
  }
  std::array<char, 160> more{};
  const double plain = std::max(plan.flops, 1.0);
  std::snprintf(more.data(), more.size(), "a step takes, by its FLOPs, %.2f x the time without recomputation",
                1 + plan.recomputed_flops / plain);
  std::string time = more.data();
  if (plan.expansion_flops > 0) {
    std::snprintf(more.data(), more.size(), "; expanding packed weights is worth %.2f x that time besides",
                  plan.expansion_flops / plain);
    time += more.data();
  }
  time += plan.quantum > 1 ? "\n  too many combinations to look at each: kept bytes of a block counted in steps of " +
                                 bytes(plan.quantum)
                           : "\n  the least work of all combinations that fit (exact, in bytes)";
  const std::string weights = plan.format == "none" ? "weights as they are" : "weights packed by " + plan.format;
  return "plan for memory.budget = " + bytes(plan.budget) + ": predicted peak " + bytes(plan.peak) + ", " + weights +
         "\n" + aligned(rows) + "  " + time + "\n";
}

std::string to_json(const BudgetPlan& plan) {
  Json json{{"budget", plan.budget},
            {"peak", plan.peak},
            {"format", plan.format},
            {"flops", plan.flops},
            {"recomputed_flops", plan.recomputed_flops},
            {"expansion_flops", plan.expansion_flops},
            {"work", plan.work},
            {"rounded_to", plan.quantum},
            {"blocks", Json::array()}};
  for (const PlannedBlock& block : plan.blocks)
    json["blocks"].push_back({{"name", block.name},
                              {"type", block.type},
                              {"way", block.way},
                              {"kept", block.kept},
                              {"recomputed_flops", block.recomputed_flops}});
  return json.dump(1) + "\n";
}

BudgetPlan parse_plan(const std::string& text, const std::string& file) {
  constexpr auto kAnew = "; delete this file to have it planned anew";
  require_shallow(text, file);
  try {
    const Json json = Json::parse(text);
    BudgetPlan plan;
    plan.budget = count_in(json.at("budget"));
    plan.peak = count_in(json.at("peak"));
    json.at("format").get_to(plan.format);
    json.at("flops").get_to(plan.flops);
    json.at("recomputed_flops").get_to(plan.recomputed_flops);
    plan.expansion_flops = json.value("expansion_flops", 0.0);  // runs of older programs have none
    plan.work = count_in(json.value("work", Json(0)));
    plan.quantum = count_in(json.value("rounded_to", Json(1)));
    for (const Json& block : json.at("blocks"))
      plan.blocks.push_back({block.at("name"), block.at("type"), block.at("way"), count_in(block.at("kept")),
                             block.at("recomputed_flops")});
    return plan;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::bad_input, file + ": no plan of memory.budget (" + error.what() + ")" + kAnew);
  } catch (const std::out_of_range& error) {
    throw Error(ExitCode::bad_input, file + ": no plan of memory.budget (" + error.what() + ")" + kAnew);
  }
}

bool same_ways(const BudgetPlan& a, const BudgetPlan& b) {
  return a.format == b.format && std::equal(a.blocks.begin(), a.blocks.end(), b.blocks.begin(), b.blocks.end(),
                                            [](const PlannedBlock& one, const PlannedBlock& other) {
                                              return one.name == other.name && one.way == other.way;
                                            });
}

void require_blocks(const BudgetPlan& plan, const std::vector<std::string>& names, const std::string& file) {
  if (std::equal(plan.blocks.begin(), plan.blocks.end(), names.begin(), names.end(),
                 [](const PlannedBlock& block, const std::string& name) { return block.name == name; }))
    return;
  const std::string first = names.empty() ? "none" : names.front() + " ... " + names.back();
  throw Error(ExitCode::bad_input, file + ": this plan of memory.budget is of another model: it has " +
                                       std::to_string(plan.blocks.size()) + " blocks, the recipe's model has " +
                                       std::to_string(names.size()) + " (" + first +
                                       "); delete this file to have the run plan anew, or choose another run.output");
}

std::string table(const std::vector<WayRow>& rows) {
  std::vector<std::vector<std::string>> cells{
      {"block type", "blocks", "run with", "kept, each", "recomputed, each", "time", "operations kept"}};
  bool unread = false;
  for (const WayRow& row : rows) {
    std::array<char, 32> time{};
    const double plain = row.cost.forward_flops + row.cost.backward_flops;
    std::snprintf(time.data(), time.size(), "%.2f x", plain > 0 ? 1 + row.cost.recomputed_flops / plain : 1);
    cells.push_back({row.type, std::to_string(row.blocks), row.way, bytes(row.cost.kept),
                     format_flops(row.cost.recomputed_flops) + " of " + format_flops(row.cost.forward_flops),
                     time.data(), kept_text(row.cost)});
    unread = unread || !row.cost.unread_ops.empty();
  }
  return aligned(cells) +
         (unread ? "  *: kept, but nothing in the backward reads it; not kept, elision leaves it out\n" : "");
}

}  // namespace trainer::planner
