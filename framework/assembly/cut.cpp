#include <assembly/cut.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace trainer::assembly {
namespace {

std::set<const LinearState*> states_of(std::span<const Linear> layers) {
  std::set<const LinearState*> states;
  for (const Linear& layer : layers) states.insert(&layer.state());
  return states;
}

}  // namespace

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

Inventory part_of(const Inventory& all, std::span<Block* const> chain, std::span<Block* const> kept) {
  std::set<const void*> left_out;
  for (const Block* block : chain) {
    if (std::find(kept.begin(), kept.end(), block) != kept.end()) continue;
    for (const Linear& linear : block->info().linears) left_out.insert(&linear.state());
    for (const ParameterPtr& parameter : block->info().parameters) left_out.insert(parameter.get());
  }
  Inventory part;
  for (const Linear& linear : all.linears)
    if (!left_out.contains(&linear.state())) part.linears.push_back(linear);
  for (const ParameterPtr& parameter : all.parameters)
    if (!left_out.contains(parameter.get())) part.parameters.push_back(parameter);
  return part;
}

std::vector<Block*> kept_blocks(Model& model, std::span<const Linear> adapted, const Cut& cut) {
  const auto type_of = [&](const Block& block) {
    return block.info().type + (cut.way_of ? "\n" + cut.way_of(block) : "");
  };
  const std::set<const LinearState*> targeted = states_of(adapted);
  if (targeted.empty()) return ends_of_types(model.blocks(), nullptr, type_of);
  const auto wanted = [&](const Block& block) {
    const auto& linears = block.info().linears;
    return std::any_of(linears.begin(), linears.end(),
                       [&](const Linear& linear) { return targeted.contains(&linear.state()); });
  };
  return ends_of_types(model.blocks(), wanted, type_of);
}

void keep_only(std::vector<Linear>& layers, std::span<const Linear> present) {
  const std::set<const LinearState*> here = states_of(present);
  std::erase_if(layers, [&](const Linear& layer) { return !here.contains(&layer.state()); });
}

CutModel::CutModel(std::unique_ptr<Model> whole, std::vector<Block*> kept)
    : whole_(std::move(whole)), kept_(std::move(kept)) {}

}  // namespace trainer::assembly
