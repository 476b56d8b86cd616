#include <adapter/inject.hpp>
#include <assembly/model_loader.hpp>
#include <assembly/part_costs.hpp>
#include <assembly/random_source.hpp>
#include <planner/shape_source.hpp>
#include <weights/model_files.hpp>

namespace trainer::assembly {
namespace {

/// A strategy that packs weights and packs none was set up wrongly.
void require_packed(const LoadedModel& loaded) {
  if (loaded.memory.format() == nullptr || loaded.inventory.packed_layers > 0) return;
  throw Error(ExitCode::bad_recipe,
              "memory." + loaded.memory.format_name() +
                  ": it packs no layer of this model; exclude fewer layers, or leave the strategy "
                  "out of memory.strategies");
}

PlacementPlan on_dry_devices(PlacementPlan plan, const Devices& devices) {
  plan.prologue = devices.dry(plan.prologue);
  plan.epilogue = devices.dry(plan.epilogue);
  for (at::Device& device : plan.blocks) device = devices.dry(device);
  return plan;
}

}  // namespace

ModelSpec model_spec(Components& components, const distributed::Share& share) {
  const auto open = [&components]() -> StoredModel {
    const std::shared_ptr<weights::ModelFiles> files =
        weights::ModelFiles::open(components.recipe().model.path, {.component = "transformer"});
    return {files, files->config().value_or("")};
  };
  return {open, share.micro_batches, static_cast<uint64_t>(components.recipe().run.seed)};
}

PlacementPlan OneDevice::plan(const PlacementRequest& request) const {
  const at::Device device = request.devices.front();
  PlacementPlan plan{device, std::vector<at::Device>(request.blocks.size(), device), device, {}};
  for (int64_t micro = 0; micro < request.micro_batches; ++micro)
    for (const Pass pass : {Pass::forward, Pass::backward}) plan.schedule.push_back({pass, 0, micro});
  return plan;
}

bool ModelLoader::is_dry(const LoadOptions& options) const {
  return options.weights == Weights::shapes || !components_.devices().are_open();
}

std::string ModelLoader::open_source(LoadedModel& loaded, const LoadOptions& options) {
  const ModelComponent& offered = components_.model();
  StoredModel stored = spec_.open();
  loaded.source = is_dry(options) ? planner::shapes_of(stored.weights, components_.devices().dry(at::kCPU))
                                  : std::move(stored.weights);
  if (!stored.canonical && offered.map_weights != nullptr)
    loaded.source = plugin::guard(components_.recipe().model.kind, "map_weights",
                                  [&] { return offered.map_weights(loaded.source); });
  if (options.weights == Weights::random)
    loaded.source = std::make_shared<RandomSource>(named_shapes(*loaded.source), spec_.seed, "random weights");
  loaded.lora_family = lora_family(offered);
  return std::move(stored.config);
}

std::unique_ptr<Model> ModelLoader::create(const LoadedModel& loaded, const std::string& config,
                                           SourceBuilder& builder) {
  const recipe::Component& component = components_.recipe().model;
  return plugin::guard(component.kind, "create", [&] {
    return components_.model().create(ModelContext{component.options, *loaded.source, config, builder});
  });
}

void ModelLoader::make_adapter(LoadedModel& loaded) const {
  const auto& chosen = components_.recipe().adapter;
  if (!chosen || loaded.adapter) return;
  MadeAdapter made = components_.adapter(loaded.lora_family, loaded.inventory.linears);
  loaded.adapter = std::move(made.adapter);
  loaded.adapter_kind = chosen->kind;
  loaded.file_layers = std::move(made.file_layers);
}

std::vector<Linear> ModelLoader::adapted_layers(const LoadedModel& loaded) const {
  if (spec_.targets) return spec_.targets(*loaded.model, loaded.inventory);
  return adapter::targeted(*loaded.adapter, *loaded.model, loaded.inventory.linears, loaded.file_layers);
}

void ModelLoader::cut(LoadedModel& loaded, const Cut& cut) const {
  if (loaded.adapter) loaded.adapted = adapted_layers(loaded);
  std::vector<Block*> kept = kept_blocks(*loaded.model, loaded.adapted, cut);
  loaded.inventory = part_of(loaded.inventory, loaded.model->blocks(), kept);
  loaded.model = std::make_unique<CutModel>(std::move(loaded.model), std::move(kept));
  keep_only(loaded.adapted, loaded.inventory.linears);
}

void ModelLoader::place(LoadedModel& loaded, const LoadOptions& options) const {
  const std::string& kind = components_.recipe().placement.kind;
  loaded.placement = plugin::guard(kind, "plan", [&] { return options.placement->plan(loaded.parts); });
  execution::check_plan(loaded.placement, loaded.parts, kind);
  if (is_dry(options)) loaded.placement = on_dry_devices(std::move(loaded.placement), components_.devices());
  loaded.devices = execution::LayerDevices(*loaded.model, loaded.placement, kind);
}

void ModelLoader::attach_adapter(LoadedModel& loaded, const LoadOptions& options) const {
  const auto& chosen = components_.recipe().adapter;
  if (!chosen) {
    loaded.trained = trained_parameters(loaded.inventory);
    return;
  }
  make_adapter(loaded);
  if (options.cut == nullptr) loaded.adapted = adapted_layers(loaded);
  if (options.weights == Weights::none) return;
  const auto device_of = [&](const std::string& layer) { return loaded.devices.of(layer); };
  loaded.trained = plugin::guard(chosen->kind, "attach", [&] {
    return adapter::inject(*loaded.adapter, loaded.adapted, spec_.seed, device_of,
                           dtype_of(components_.recipe().model.dtype));
  });
}

BuildOptions ModelLoader::build_options(const LoadedModel& loaded, const LoadOptions& options) const {
  const recipe::Recipe& recipe = components_.recipe();
  const at::Device first = components_.devices().training().front();
  BuildOptions build;
  build.dtype = dtype_of(recipe.model.dtype);
  build.device = is_dry(options) ? components_.devices().dry(first) : first;
  build.trained = options.weights != Weights::none && options.trained && !recipe.adapter;
  build.headers_only = true;
  build.format = loaded.memory.format();
  build.before_weight = options.before_weight;
  build.expanded = options.expanded;
  return build;
}

void ModelLoader::read_weights(LoadedModel& loaded, const std::string& config, BuildOptions build,
                               const LoadOptions& options) {
  build.headers_only = options.cut != nullptr;  // of a cut model only a part is read
  build.device = loaded.placement.prologue;
  build.device_of = [&loaded](const std::string& name) { return loaded.devices.of(name); };
  SourceBuilder builder(*loaded.source, build);
  loaded.model = create(loaded, config, builder);
  loaded.inventory = builder.inventory();
  if (options.cut == nullptr) return require_packed(loaded);
  cut(loaded, *options.cut);
  builder.materialise(loaded.inventory.linears, loaded.inventory.parameters);
  loaded.inventory.weight_bytes = builder.inventory().weight_bytes;
}

LoadedModel ModelLoader::load(execution::MemoryStack memory, const LoadOptions& options) {
  LoadedModel loaded;
  loaded.memory = std::move(memory);
  const std::string config = open_source(loaded, options);
  const BuildOptions build = build_options(loaded, options);
  refuse_packed_training(build);
  // First from headers alone: the placement needs the blocks, and the weights need the placement.
  SourceBuilder headers(*loaded.source, build);
  loaded.model = create(loaded, config, headers);
  loaded.inventory = headers.inventory();
  if (options.cut != nullptr) {
    make_adapter(loaded);
    cut(loaded, *options.cut);
  }
  loaded.parts = placement_request(*loaded.model, loaded.inventory, *loaded.source, build);
  loaded.parts.devices = components_.devices().training();
  loaded.parts.micro_batches = spec_.micro_batches;
  if (options.placement == nullptr) return loaded;
  place(loaded, options);
  if (options.weights != Weights::none) read_weights(loaded, config, build, options);
  if (is_dry(options)) loaded.memory.store_on_shapes(components_.devices().dry(at::kCPU));
  if (options.trained) attach_adapter(loaded, options);
  if (options.expanded) loaded.memory = execution::MemoryStack();  // it has packed, and acts no more
  if (options.weights == Weights::none) return loaded;
  if (WeightResidency* residency = loaded.memory.residency()) residency->plan(loaded.model->blocks());
  return loaded;
}

}  // namespace trainer::assembly
