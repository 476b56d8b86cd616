#include <adapter/inject.hpp>
#include <assembly/model_loader.hpp>
#include <assembly/random_source.hpp>
#include <planner/byte_counter.hpp>
#include <prove/cells.hpp>
#include <recipe/default_options.hpp>
#include <weights/model_files.hpp>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <set>

namespace trainer::prove {
namespace {

constexpr uint64_t kSeed = 11;
constexpr int64_t kSamples = 3;

/// The component's defaults; none for what has no manifest (built in for proofs).
Options options_of(const plugin::Loader& loader, const std::string& kind, const std::string& name) {
  const plugin::Manifest* manifest = plugin::find_manifest(loader.found().manifests, kind, name);
  return manifest == nullptr ? Options(name, {}) : recipe::default_options(manifest->schema);
}

Options changed(Options options, const Table& changes) {
  if (changes.empty()) return options;
  Table values = options.values();
  for (const auto& [key, value] : changes) values[key] = value;
  return Options(options.section(), std::move(values));
}

/// With the component's defaults, but for `changes`.
template <typename Parts>
auto make(plugin::Loader& loader, const Parts& parts, const std::string& kind, const std::string& name,
          const Table& changes = {}) {
  return assembly::make(loader, parts, kind, name, changed(options_of(loader, kind, name), changes));
}

/// Names of memory strategies, sorted.
std::vector<std::string> strategies_where(const plugin::Loader& loader,
                                          const std::function<bool(const recipe::ComponentSchema&)>& wanted) {
  std::vector<std::string> names;
  for (const plugin::Manifest& manifest : loader.found().manifests)
    if (manifest.schema.kind == "memory" && wanted(manifest.schema)) names.push_back(manifest.schema.name);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<Linear> shared_layers(const assembly::Inventory& inventory, Model& model) {
  std::set<const LinearState*> inside;
  for (const Block* block : model.blocks())
    for (const Linear& linear : block->info().linears) inside.insert(&linear.state());
  std::vector<Linear> outside, named;
  for (const Linear& linear : inventory.linears) {
    if (inside.contains(&linear.state()) || linear.state().spared) continue;
    outside.push_back(linear);
    if (adapter::matches("*modulation*", linear.name()) || adapter::matches("*time*embed*", linear.name()))
      named.push_back(linear);
  }
  return named.empty() ? outside : named;
}

/// The layers that carry the adapter.
std::vector<Linear> layers_of(Trained trained, Model& model, const assembly::Inventory& inventory) {
  return trained == Trained::default_targets ? adapter::select(inventory.linears, model.default_targets())
                                             : shared_layers(inventory, model);
}

/// What of a recipe makes the setting's components.
recipe::Recipe recipe_of(const plugin::Loader& loader, const Setting& setting) {
  recipe::Recipe recipe;
  const auto choose = [&](recipe::Component& component, const std::string& kind, const std::string& name) {
    component.kind = name;
    component.options = options_of(loader, kind, name);
  };
  choose(recipe.model, "model", setting.subject.component);
  recipe.model.dtype = setting.dtype == at::kFloat ? "fp32" : "bf16";
  choose(recipe.objective, "objective", setting.objective);
  choose(recipe.placement, "placement", setting.placement);
  if (setting.trained != Trained::all) choose(recipe.adapter.emplace(), "adapter", setting.adapter);
  return recipe;
}

assembly::ModelSpec spec_of(const Setting& setting) {
  return {[&setting] {
            return assembly::StoredModel{setting.subject.open(), setting.subject.config, /*canonical=*/true};
          },
          setting.micro_batches, kSeed,
          [trained = setting.trained](Model& model, const assembly::Inventory& inventory) {
            return layers_of(trained, model, inventory);
          }};
}

void require_several_devices(const PlacementPlan& plan, const std::string& placement) {
  const bool one = plan.epilogue == plan.prologue && std::all_of(plan.blocks.begin(), plan.blocks.end(),
                                                                 [&](at::Device d) { return d == plan.prologue; });
  if (one) throw PluginError(placement, "plan", "it leaves everything on one device, so nothing is proven");
}

/// Whether one of them only stores what recomputed blocks keep, and nothing recomputes.
bool stores_nothing(plugin::Loader& loader, const std::vector<std::string>& names) {
  bool stores = false, recomputes = false;
  for (const std::string& name : names) {
    const auto strategy = make(loader, loader.registry().memory, "memory", name);
    recomputes |= strategy->recompute_policy() != nullptr;
    stores |= strategy->activation_store() != nullptr && strategy->weight_format() == nullptr &&
              strategy->weight_residency() == nullptr;
  }
  return stores && !recomputes;
}

}  // namespace

Subject miniature_of(plugin::Loader& loader, const std::string& component) {
  const ModelComponent& offered = loader.registry().models.at(component);
  if (offered.miniature == nullptr)
    throw Error(ExitCode::not_found, "the model \"" + component +
                                         "\" offers no miniature of itself (ModelComponent::miniature); give a folder "
                                         "with weights: --model FOLDER");
  const Miniature miniature = plugin::guard(component, "miniature", offered.miniature);
  return {component, component, miniature.config, [tensors = miniature.tensors, component] {
            return std::make_shared<assembly::RandomSource>(tensors, kSeed, "random weights of " + component);
          }};
}

Subject model_in(plugin::Loader& loader, const std::string& component, const std::string& folder) {
  const std::shared_ptr<weights::ModelFiles> files = weights::ModelFiles::open(folder, {.component = "transformer"});
  std::shared_ptr<WeightSource> source = files;
  if (const auto map = loader.registry().models.at(component).map_weights; map != nullptr)
    source = plugin::guard(component, "map_weights", [&] { return map(files); });
  return {component, component, files->config().value_or(""), [source] { return source; }};
}

std::string text_of(Trained trained) {
  const char* const texts[] = {"default targets", "shared layers", "all parameters"};
  return texts[static_cast<int>(trained)];
}
std::string text_of(const Setting& setting) {
  return setting.subject.name + " | " + (setting.dtype == at::kFloat ? "fp32" : "bf16") + " | " +
         (setting.trained == Trained::all ? "" : setting.adapter + ", ") + text_of(setting.trained) + " | " +
         std::to_string(setting.micro_batches) +
         (setting.devices.size() == 1
              ? ""
              : ", " + setting.placement + " over " + std::to_string(setting.devices.size()) + " devices");
}

std::vector<Setting> all_settings(const Subject& subject) {
  std::vector<Setting> list;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const Trained trained : {Trained::default_targets, Trained::shared_layers, Trained::all})
      for (const int64_t micro_batches : {1, 3}) list.push_back({subject, dtype, trained, micro_batches});
  return list;
}

std::vector<std::string> memory_strategies(const plugin::Loader& loader) {
  return strategies_where(loader, [](const recipe::ComponentSchema& schema) { return schema.tolerance.rounding == 0; });
}

std::vector<std::string> rounding_strategies(const plugin::Loader& loader) {
  return strategies_where(loader, [](const recipe::ComponentSchema& schema) { return schema.tolerance.rounding > 0; });
}

std::vector<std::string> own_strategies(const plugin::Loader& loader) {
  std::vector<std::string> names = memory_strategies(loader);
  std::erase_if(names, [&](const std::string& name) {
    const auto& all = loader.found().manifests;
    return std::none_of(all.begin(), all.end(), [&](const plugin::Manifest& manifest) {
      return manifest.schema.kind == "memory" && manifest.schema.name == name && plugin::is_own(manifest);
    });
  });
  return names;
}

execution::MemoryStack stack_of(plugin::Loader& loader, const std::vector<std::string>& names, const Changes& changes) {
  std::vector<execution::MemoryStack::Named> strategies;
  for (const std::string& name : names) {
    const auto change = changes.find(name);
    strategies.push_back(
        {name,
         make(loader, loader.registry().memory, "memory", name, change == changes.end() ? Table{} : change->second), "",
         tolerance_of(loader, {name}).rounding});
  }
  return execution::MemoryStack(std::move(strategies), execution::MemoryStack::Promises::checked);
}

recipe::Tolerance tolerance_of(plugin::Loader& loader, const std::vector<std::string>& names) {
  for (const std::string& name : packing(loader, names))
    if (const auto* manifest = plugin::find_manifest(loader.found().manifests, "memory", name))
      return manifest->schema.tolerance;
  return {0, 0};
}

std::vector<std::string> packing(plugin::Loader& loader, const std::vector<std::string>& names) {
  std::vector<std::string> packing;
  for (const std::string& name : names)
    if (make(loader, loader.registry().memory, "memory", name)->weight_format() != nullptr) packing.push_back(name);
  return packing;
}

Trajectory run_cell(plugin::Loader& loader, const Setting& setting, execution::MemoryStack memory,
                    const Failure& failure, bool expanded) {
  planner::install_byte_counter();
  const planner::PeakMark held(setting.devices.front());
  const recipe::Recipe recipe = recipe_of(loader, setting);
  const assembly::Devices devices(setting.devices);
  assembly::Components components(recipe, loader, devices);
  const auto placement = components.placement();
  assembly::LoadedModel loaded = assembly::ModelLoader(components, spec_of(setting))
                                     .load(std::move(memory), {.placement = placement.get(), .expanded = expanded});
  if (setting.several_devices) require_several_devices(loaded.placement, setting.placement);
  const auto objective = components.objective();
  return train_loaded(
      loaded, *objective, held,
      {{}, kSamples, setting.micro_batches, at::kCPU, kSeed, setting.max_grad_norm, setting.fused_backward}, failure);
}

Row compare_cells(const Setting& setting, const std::string& subset, const std::string& against,
                  const std::function<Trajectory()>& run, const std::function<Trajectory()>& expected,
                  bool may_refuse) {
  Row row{text_of(setting), subset, against};
  judge(row, may_refuse, [&] {
    const Trajectory trajectory = run();
    measure(row, trajectory);
    compare(row, trajectory, expected());
  });
  return row;
}

Trajectory SubsetCheck::run(const std::vector<std::string>& names, bool expanded) {
  return run_cell(loader_, setting_, stack_of(loader_, names, changes_), {}, expanded);
}

const Trajectory& SubsetCheck::base(const std::vector<std::string>& packing) {
  if (bases_.contains(packing)) return bases_.at(packing);
  execution::MemoryStack stack = stack_of(loader_, packing, changes_);
  stack.keep_packing_only();  // a strategy may do more, and need others for that
  return bases_[packing] = run_cell(loader_, setting_, std::move(stack));
}

void SubsetCheck::judge_packed(Row& row, const Trajectory& run, const std::vector<std::string>& packed) {
  const bool near = is_near_dense(row, run, base({}), tolerance_of(loader_, packed));
  row.result += "; " + row.apart->text() + " from dense weights";
  if (near) return;
  char allowed[96];
  std::snprintf(allowed, sizeof allowed, ", more than the declared %g", row.tolerance.dense);
  row.verdict = Row::differs;
  row.result = "TOO FAR: " + row.result + allowed;
}

Row SubsetCheck::check(const std::vector<std::string>& names) {
  Row row{text_of(setting_), join(names)};
  judge(row, !names.empty(), [&] {
    if (stores_nothing(loader_, names)) {
      row.verdict = Row::idle;
      row.result = "not run: nothing recomputes, so there is nothing to store";
      return;
    }
    const std::vector<std::string> packed = packing(loader_, names);
    const bool alone = !packed.empty() && packed == names;
    row.against = alone ? "its weights held densely" : join(packed);
    const Trajectory trajectory = run(names);
    measure(row, trajectory);
    if (alone)
      compare_expanded(row, trajectory, run(packed, /*expanded=*/true), tolerance_of(loader_, packed));
    else
      compare(row, trajectory, base(packed));
    if (!packed.empty()) judge_packed(row, trajectory, packed);
  });
  return row;
}

std::vector<Row> SubsetCheck::check_all(const std::vector<std::string>& strategies, const std::string& having) {
  std::vector<Row> rows;
  for (std::size_t bits = 0; bits < std::size_t{1} << strategies.size(); ++bits) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < strategies.size(); ++i)
      if ((bits >> i & 1U) != 0) names.push_back(strategies[i]);
    if (having.empty() || std::find(names.begin(), names.end(), having) != names.end()) rows.push_back(check(names));
  }
  return rows;
}

std::vector<Row> check_failures(plugin::Loader& loader, const Setting& setting, const std::vector<std::string>& names) {
  std::vector<Row> rows;
  std::optional<Trajectory> whole;
  for (const Failure::Place place : {Failure::before_forward, Failure::before_backward})
    for (int64_t micro = 0; micro < setting.micro_batches; ++micro) {
      Row row{text_of(setting), join(names),
              "itself, dying " +
                  std::string(place == Failure::before_forward ? "before forward " : "before backward ") +
                  std::to_string(micro)};
      judge(row, !names.empty(), [&] {
        if (!whole) whole = run_cell(loader, setting, stack_of(loader, names));
        const Trajectory run = run_cell(loader, setting, stack_of(loader, names), {place, micro});
        measure(row, run);
        compare(row, run, *whole);
      });
      rows.push_back(std::move(row));
    }
  return rows;
}

}  // namespace trainer::prove
