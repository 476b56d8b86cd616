#include <c10/util/accumulate.h>
#include <assembly/part_costs.hpp>
#include <trainer/sdk/weight_scales.hpp>

#include <set>
#include <string>

namespace trainer::assembly {
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
    part.weight_bytes += packed ? packed_bytes(state) : state.in * state.out * element_size();
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
  /// What a file holds in fp8 already stays as it is, whatever the format would make of it.
  [[nodiscard]] int64_t packed_bytes(const LinearState& state) const {
    const std::string name = state.name + ".weight";
    const TensorInfo* stored = source_.find(name);
    if (stored == nullptr || !(stored->dtype == at::kFloat8_e4m3fn || stored->dtype == at::kFloat8_e5m2))
      return build_.format->bytes(state, build_.dtype);
    constexpr int64_t kScaleBytes = 4;  // fp32
    int64_t scales = 1;
    for (const std::string& scale : scales_of(source_, name))
      if (const TensorInfo* info = source_.find(scale)) scales = scales_held(info->shape, state);
    return state.in * state.out + scales * kScaleBytes;
  }
  /// Tiles are held as blocks of every row.
  static int64_t scales_held(const std::vector<int64_t>& shape, const LinearState& state) {
    const int64_t count = c10::multiply_integers(shape);
    return shape.size() < 2 || count <= 1 ? count : state.out * shape[1];
  }
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

}  // namespace trainer::assembly
