/// @file The cells of the placement matrix of one setting: every subset of the memory strategies x every placement of
/// the registry x two and three devices, against one device. Each has a row.
#pragma once

#include <equivalence/subjects.hpp>

#include <string>
#include <vector>

namespace trainer::placement {

/// The setting on the first devices of the simulation: a strategy or the placement may refuse it.
prove::Trajectory run_on(plugin::Loader& loader, prove::Setting setting, const std::vector<std::string>& strategies,
                         const prove::Place& place);

/// One of the cells.
struct Cell {
  std::vector<std::string> strategies;
  prove::Place place;
  prove::Row row;
};
/// All of a setting, in the order of subsets. `placement`: only those on this one; "" for all.
std::vector<Cell> cells_of(plugin::Loader& loader, const prove::Setting& setting, const std::string& placement = "");

}  // namespace trainer::placement
