/// @file A recipe's model cut short, for `trainer prove`.
#include <adapter/inject.hpp>
#include <assembly/assemble.hpp>
#include <assembly/part_costs.hpp>
#include <assembly/cut_model.hpp>
#include <assembly/random_source.hpp>
#include <weights/model_files.hpp>

#include <algorithm>
#include <map>
#include <set>

namespace trainer::assembly {
namespace {

std::set<const LinearState*> states_of(std::span<const Linear> layers) {
  std::set<const LinearState*> states;
  for (const Linear& layer : layers) states.insert(&layer.state());
  return states;
}

/// Which blocks stand for the whole: those with something to train, where a type has such blocks. With a plan, each way
/// in which it runs blocks of a type makes a type of its own.
std::vector<Block*> kept_blocks(Model& model, const std::set<const LinearState*>& targeted,
                                const std::optional<planner::BudgetPlan>& plan) {
  std::map<std::string, std::string> ways;
  if (plan)
    for (const planner::PlannedBlock& block : plan->blocks) ways[block.name] = block.way;
  const auto type_of = [&](const Block& block) { return block.info().type + "\n" + ways[block.info().name]; };
  if (targeted.empty()) return assembly::ends_of_types(model.blocks(), nullptr, type_of);
  const auto wanted = [&](const Block& block) {
    const auto& linears = block.info().linears;
    return std::any_of(linears.begin(), linears.end(),
                       [&](const Linear& linear) { return targeted.contains(&linear.state()); });
  };
  return assembly::ends_of_types(model.blocks(), wanted, type_of);
}

/// The plan of these blocks alone.
planner::BudgetPlan part_of(planner::BudgetPlan plan, std::span<Block* const> kept) {
  std::vector<planner::PlannedBlock> blocks;
  for (const Block* block : kept)
    for (const planner::PlannedBlock& planned : plan.blocks)
      if (planned.name == block->info().name) blocks.push_back(planned);
  if (blocks.size() != kept.size())
    throw Error(ExitCode::bad_input, "the plan for memory.budget is of another model: it does not name every block");
  plan.blocks = std::move(blocks);
  return plan;
}

/// A model cut short, what of it takes part, and which of these layers carry the adapter.
struct Cut {
  std::unique_ptr<Model> model;
  Inventory inventory;
  std::vector<Linear> adapted;
};

Cut cut(std::unique_ptr<Model> whole, const Inventory& all, const LoadedModel& loaded,
        const std::optional<planner::BudgetPlan>& plan) {
  Cut made;
  if (loaded.adapter) made.adapted = adapter::targeted(*loaded.adapter, *whole, all.linears, loaded.file_layers);
  std::vector<Block*> kept = kept_blocks(*whole, states_of(made.adapted), plan);
  made.inventory = assembly::part_of(all, whole->blocks(), kept);
  made.model = std::make_unique<assembly::CutModel>(std::move(whole), std::move(kept));
  const auto here = states_of(made.inventory.linears);
  std::erase_if(made.adapted, [&](const Linear& layer) { return !here.contains(&layer.state()); });
  return made;
}

/// The plainest plan: everything on the request's device, one micro-batch after the other.
PlacementPlan one_device(const PlacementRequest& request) {
  const at::Device device = request.devices.front();
  PlacementPlan plan{device, std::vector<at::Device>(request.blocks.size(), device), device, {}};
  for (int64_t micro = 0; micro < request.micro_batches; ++micro)
    for (const Pass pass : {Pass::forward, Pass::backward}) plan.schedule.push_back({pass, 0, micro});
  return plan;
}

}  // namespace

std::vector<std::string> Assembly::packing_strategies() {
  if (plan_) return plan_->format == "none" ? std::vector<std::string>{} : std::vector{plan_->format};
  std::vector<std::string> names;
  for (const recipe::Component& component : recipe_.memory.components)
    if (const auto strategy = memory_strategy(component); strategy && strategy->weight_format() != nullptr)
      names.push_back(component.kind);
  return names;
}

execution::MemoryStack Assembly::cut_stack(const CutUse& use, const std::optional<planner::BudgetPlan>& plan) {
  execution::MemoryStack stack = plan ? planned_stack(*plan, use.strategies) : memory_stack(use.strategies);
  if (use.packing_only) stack.keep_packing_only();
  stack.set_partial();
  stack.check_promises();
  return stack;
}

LoadedModel Assembly::load_cut_model(const CutUse& use) {
  const recipe::Component& component = recipe_.model;
  loader_.require("model", component.kind);
  LoadedModel loaded;
  loaded.memory = cut_stack(use, plan_);
  const std::shared_ptr<weights::ModelFiles> files =
      weights::ModelFiles::open(component.path, {.component = "transformer"});
  loaded.source = files;
  if (const auto map = loader_.registry().models.find(component.kind)->second.map_weights; map != nullptr)
    loaded.source = plugin::guard(component.kind, "map_weights", [&] { return map(files); });
  const auto seed = static_cast<uint64_t>(recipe_.run.seed);
  if (use.random_weights)
    loaded.source = std::make_shared<assembly::RandomSource>(named_shapes(*loaded.source), seed, "random weights");
  BuildOptions options;
  options.dtype = dtype_of(component.dtype);
  options.device = devices_.front();
  options.trained = !recipe_.adapter;
  options.headers_only = true;
  options.format = loaded.memory.format();
  options.expanded = use.expanded;
  refuse_packed_training(options);
  const std::string config = files->config().value_or("");
  // Twice from headers: the placement needs the blocks, and the layers need the placement.
  SourceBuilder headers(*loaded.source, options);
  std::unique_ptr<Model> whole = create_model(loaded, config, headers);
  loaded.lora_family = lora_family(loader_.registry().models.find(component.kind)->second);
  if (recipe_.adapter) make_adapter(loaded, headers.inventory().linears);
  const Cut outline = cut(std::move(whole), headers.inventory(), loaded, plan_);
  if (plan_) loaded.memory = cut_stack(use, part_of(*plan_, outline.model->blocks()));
  options.format = loaded.memory.format();
  loaded.parts = placement_request(*outline.model, outline.inventory, *loaded.source, options);
  loaded.parts.micro_batches = share_.micro_batches;
  loaded.parts.devices = use.placed ? devices_ : std::vector{devices_.front()};
  loaded.placement = use.placed ? plan_placement(loaded.parts) : one_device(loaded.parts);
  loaded.devices = execution::LayerDevices(*outline.model, loaded.placement, recipe_.placement.kind);
  options.device = loaded.placement.prologue;
  options.device_of = [&loaded](const std::string& name) { return loaded.devices.of(name); };
  SourceBuilder builder(*loaded.source, options);
  Cut made = cut(create_model(loaded, config, builder), builder.inventory(), loaded, plan_);
  builder.materialise(made.inventory.linears, made.inventory.parameters);
  loaded.model = std::move(made.model);
  loaded.inventory = std::move(made.inventory);
  loaded.inventory.weight_bytes = builder.inventory().weight_bytes;
  loaded.adapted = std::move(made.adapted);
  loaded.trained = loaded.adapter
                       ? adapter::inject(*loaded.adapter, loaded.adapted, seed, options.device_of, options.dtype)
                       : trained_parameters(loaded.inventory);
  if (use.expanded) loaded.memory = execution::MemoryStack();  // it has packed, and acts no more
  if (loaded.memory.residency() != nullptr) loaded.memory.residency()->plan(loaded.model->blocks());
  return loaded;
}

}  // namespace trainer::assembly
