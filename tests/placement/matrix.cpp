/// @file See matrix.hpp.
#include "matrix.hpp"

#include <sim/sim.hpp>
#include <trainer/sdk/error.hpp>

#include <map>

namespace trainer::placement {
namespace {

using prove::Row;
using prove::Setting;
using prove::Trajectory;
using Names = std::vector<std::string>;

Setting placed(Setting setting, const prove::Place& place) {
  setting.placement = place.placement;
  setting.devices.clear();
  for (int64_t d = 0; d < place.devices; ++d) setting.devices.push_back(sim::device(static_cast<int>(d)));
  return setting;
}

/// A store where nothing recomputes has nothing to do, in any placement.
std::string idle(plugin::Loader& loader, const Names& names) {
  try {
    return prove::stack_of(loader, names).idle();
  } catch (const Error&) {
    return {};  // the run reports it
  }
}

}  // namespace

Trajectory run_on(plugin::Loader& loader, Setting setting, const Names& strategies, const prove::Place& place) {
  return prove::run_cell(loader, placed(std::move(setting), place), prove::stack_of(loader, strategies));
}

std::vector<Cell> cells_of(plugin::Loader& loader, const Setting& setting, const std::string& placement) {
  std::map<Names, Trajectory> bases;  // by the strategies that pack weights
  const auto base = [&](const Names& packing) -> const Trajectory& {
    if (!bases.contains(packing)) bases[packing] = run_on(loader, setting, packing, {"single", 1});
    return bases.at(packing);
  };
  std::vector<Cell> cells;
  for (const Names& names : equivalence::subsets(prove::memory_strategies(loader)))
    for (const prove::Place& place : prove::places(loader)) {
      if (!placement.empty() && place.placement != placement) continue;
      const Setting there = placed(setting, place);
      if (const std::string why = idle(loader, names); !why.empty()) {
        Row row{prove::text_of(there), prove::join(names)};
        row.verdict = Row::idle;
        row.result = "not run: " + why;
        cells.push_back({names, place, std::move(row)});
        continue;
      }
      const Names against = prove::packing(loader, names);
      cells.push_back({names, place,
                       prove::compare_cells(
                           there, prove::join(names), prove::join(against) + " on one device",
                           [&] { return run_on(loader, setting, names, place); }, [&] { return base(against); },
                           /*may_refuse=*/true)});
    }
  return cells;
}

}  // namespace trainer::placement
