#include <assembly/cut_model.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace trainer::assembly {

std::vector<Block*> ends_of_types(std::span<Block* const> blocks, const std::function<bool(const Block&)>& wanted,
                                  const std::function<std::string(const Block&)>& type_of) {
  const auto type_text = [&](const Block& block) { return type_of ? type_of(block) : block.info().type; };
  std::map<std::string, bool> has_wanted;
  for (const Block* block : blocks) has_wanted[type_text(*block)] |= wanted && wanted(*block);
  std::map<std::string, std::pair<Block*, Block*>> ends;
  for (Block* block : blocks) {
    const std::string type = type_text(*block);
    if (has_wanted[type] && !wanted(*block)) continue;
    auto& [first, last] = ends[type];
    if (first == nullptr) first = block;
    last = block;
  }
  std::vector<Block*> kept;
  for (Block* block : blocks) {
    const auto& [first, last] = ends[type_text(*block)];
    if (block == first || block == last) kept.push_back(block);
  }
  return kept;
}

assembly::Inventory part_of(const assembly::Inventory& all, std::span<Block* const> chain, std::span<Block* const> kept) {
  std::set<const void*> left_out;
  for (const Block* block : chain) {
    if (std::find(kept.begin(), kept.end(), block) != kept.end()) continue;
    for (const Linear& linear : block->info().linears) left_out.insert(&linear.state());
    for (const ParameterPtr& parameter : block->info().parameters) left_out.insert(parameter.get());
  }
  assembly::Inventory part;
  for (const Linear& linear : all.linears)
    if (!left_out.contains(&linear.state())) part.linears.push_back(linear);
  for (const ParameterPtr& parameter : all.parameters)
    if (!left_out.contains(parameter.get())) part.parameters.push_back(parameter);
  return part;
}

CutModel::CutModel(std::unique_ptr<Model> whole, std::vector<Block*> kept)
    : whole_(std::move(whole)), kept_(std::move(kept)) {}

}  // namespace trainer::assembly
