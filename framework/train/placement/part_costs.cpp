#include <c10/util/accumulate.h>
#include <train/placement/part_costs.hpp>

#include <set>
#include <string>

namespace trainer::train {
namespace {

/// Adds layers to parts, each layer once.
class Costs {
 public:
  Costs(const WeightSource& source, const BuildOptions& build) : source_(source), build_(build) {}

  void add(PartCost& part, const Linear& linear) {
    const LinearState& state = linear.state();
    if (!counted_.insert(state.name).second) return;
    part.flops += flops_of(state);
    const bool packed = build_.format != nullptr && !build_.trained;
    part.weight_bytes += packed ? build_.format->bytes(state, build_.dtype) : state.in * state.out * element_size();
    if (source_.find(state.name + ".bias") != nullptr) part.weight_bytes += state.out * element_size();
  }
  void add(PartCost& part, const Parameter& parameter) {
    const TensorInfo* info = source_.find(parameter.name());
    if (info == nullptr || !counted_.insert(parameter.name()).second) return;
    part.weight_bytes += c10::multiply_integers(info->shape) * element_size();
  }
  static double flops_of(const LinearState& state) {
    return 2.0 * static_cast<double>(state.in) * static_cast<double>(state.out);
  }

 private:
  [[nodiscard]] int64_t element_size() const {
    return static_cast<int64_t>(at::elementSize(build_.trained ? at::kFloat : build_.dtype));
  }
  const WeightSource& source_;
  const BuildOptions& build_;
  std::set<std::string> counted_;
};

}  // namespace

PlacementRequest placement_request(Model& model, const Inventory& inventory, const WeightSource& source,
                                   const BuildOptions& build) {
  PlacementRequest request;
  Costs costs(source, build);
  for (const Block* block : model.blocks()) {
    PartCost part{block->info().name};
    for (const Linear& linear : block->info().linears) costs.add(part, linear);
    for (const ParameterPtr& parameter : block->info().parameters) costs.add(part, *parameter);
    if (block->info().flops_per_token > 0) part.flops = block->info().flops_per_token;
    request.blocks.push_back(std::move(part));
  }
  request.prologue.name = "prologue";
  request.epilogue.name = "epilogue";
  const auto epilogue = model.epilogue_layers();
  request.epilogue_apart = epilogue.has_value();
  std::set<std::string> last;
  if (epilogue) last.insert(epilogue->begin(), epilogue->end());
  // What is in no block yet. Its layers see some of the tokens, or one row a sample: beside the blocks they weigh
  // nothing but their bytes.
  for (const Linear& linear : inventory.linears)
    costs.add(last.contains(linear.name()) ? request.epilogue : request.prologue, linear);
  for (const ParameterPtr& parameter : inventory.parameters)
    costs.add(last.contains(parameter->name()) ? request.epilogue : request.prologue, *parameter);
  request.prologue.flops = request.epilogue.flops = 0;
  return request;
}

}  // namespace trainer::train
