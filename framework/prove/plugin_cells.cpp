#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <adapter/inject.hpp>
#include <assembly/random_source.hpp>
#include <execution/keyed_random.hpp>
#include <prove/axes.hpp>
#include <prove/plugin_cells.hpp>
#include <recipe/default_options.hpp>

#include <algorithm>
#include <map>

namespace trainer::prove {
namespace {

constexpr const char* kModel = "conformance";

void add(PluginCells& cells, std::vector<Row> rows) {
  cells.rows.insert(cells.rows.end(), std::make_move_iterator(rows.begin()), std::make_move_iterator(rows.end()));
}

std::vector<Setting> settings_on(const Subject& subject, at::Device device) {
  std::vector<Setting> settings = all_settings(subject);
  for (Setting& setting : settings) setting.devices = {device};
  return settings;
}

void check_memory(plugin::Loader& loader, const std::string& name, at::Device device, PluginCells& cells) {
  std::vector<std::string> strategies = own_strategies(loader);
  if (std::find(strategies.begin(), strategies.end(), name) == strategies.end()) strategies.push_back(name);
  const Subject subject = miniature_of(loader, kModel);
  const bool packs = !packing(loader, {name}).empty();
  const std::vector<Setting> settings = settings_on(subject, device);
  for (const Setting& setting : settings)
    if (!packs || setting.trained != Trained::all)  // trained weights are never packed
      add(cells, check_subsets(loader, setting, strategies, name));
  const bool alone = std::any_of(cells.rows.begin(), cells.rows.end(),
                                 [&](const Row& row) { return row.subset == name && row.verdict == Row::equal; });
  const std::vector<std::string> dying =
      alone ? std::vector<std::string>{name} : std::vector<std::string>{"full_checkpointing", name};
  add(cells, check_failures(loader, settings[1], dying));  // fp32, default targets, three micro-batches
}

void check_model(plugin::Loader& loader, const plugin::Manifest& manifest, const std::string& folder, at::Device device,
                 PluginCells& cells) {
  const std::string& name = manifest.schema.name;
  const Subject subject = folder.empty() ? miniature_of(loader, name) : model_in(loader, name, folder);
  std::vector<Setting> settings = settings_on(subject, device);
  for (Setting& setting : settings) {
    setting.objective = objective_beside(loader, name);
    add(cells, check_subsets(loader, setting, own_strategies(loader)));
  }
  add(cells, check_failures(loader, settings[1], {}));
}

constexpr int64_t kIn = 12, kOut = 20, kRows = 6;

/// A layer for an adapter.
Linear frozen_layer() {
  auto state = std::make_shared<LinearState>();
  state->name = "layer";
  state->in = kIn;
  state->out = kOut;
  state->frozen = std::make_shared<DenseWeight>(assembly::random_weight(1, "layer.weight", {kOut, kIn}));
  return Linear(state);
}

std::unique_ptr<Adapter> make_adapter(plugin::Loader& loader, const plugin::Manifest& manifest, bool from_file) {
  const std::string& name = manifest.schema.name;
  const Options options = recipe::default_options(manifest.schema, from_file);
  return plugin::guard(name, "create", [&] { return loader.registry().adapters.find(name)->second.create(options); });
}

/// An adapter starts from what it exports: the same output, up to the rounding of a scale that is folded in.
void check_adapter_file(plugin::Loader& loader, const plugin::Manifest& manifest, PluginCells& cells) {
  const std::string& name = manifest.schema.name;
  const std::vector<std::string>& ends = manifest.schema.tensors;
  if (ends.empty()) {
    cells.facts.emplace_back("its manifest lists no tensors: no command reads what it exports");
    return;
  }
  const Linear layer = frozen_layer(), again = frozen_layer();
  const at::Tensor x = assembly::random_weight(1, "input", {kRows, kIn}), plain = layer(x);
  const at::NoGradGuard no_grad;
  const auto first = make_adapter(loader, manifest, /*from_file=*/false);
  for (Parameter* parameter : adapter::inject(*first, std::vector{layer}, /*seed=*/1, at::kCPU))
    parameter->value().add_(assembly::random_weight(2, parameter->name(), parameter->value().sizes().vec()));
  AdapterFile file{{}, plugin::guard(name, "metadata", [&] { return first->metadata(); })};
  for (const auto& [key, tensor] : first->export_layer(layer.state())) {
    const std::string end = key.substr(std::min(key.size(), layer.name().size() + 1));
    if (std::find(ends.begin(), ends.end(), end) == ends.end())
      throw PluginError(name, "export_layer", "\"" + key + "\" ends in nothing that \"tensors\" in its manifest lists");
    file.layers[layer.name()][end] = tensor;
  }
  const auto second = make_adapter(loader, manifest, /*from_file=*/true);
  plugin::guard(name, "start_from", [&] { second->start_from(std::move(file)); });
  plugin::guard(name, "attach", [&] { adapter::inject(*second, std::vector{again}, /*seed=*/2, at::kCPU); });
  const at::Tensor y = layer(x), difference = again(x) - y;
  constexpr double kFolded = 1e-4;
  if (!(difference.norm().item<double>() <= kFolded * (y - plain).norm().item<double>()))
    throw PluginError(name, "start_from", "a layer with the values of its export computes something else");
  cells.facts.emplace_back("it starts from what it exports");
}

/// What an adapter does to a layer: nothing when it is off, finite gradients, an export of finite numbers.
void check_adapter_layer(plugin::Loader& loader, const plugin::Manifest& manifest, PluginCells& cells) {
  const std::string& name = manifest.schema.name;
  const auto adapter = make_adapter(loader, manifest, /*from_file=*/false);
  const Linear layer = frozen_layer();
  LinearState& state = layer.state();
  const at::Tensor x = assembly::random_weight(1, "input", {kRows, kIn}), plain = layer(x);
  const auto trained = plugin::guard(
      name, "attach", [&] { return adapter::inject(*adapter, std::vector{layer}, /*seed=*/1, at::kCPU); });
  if (trained.empty()) throw PluginError(name, "attach", "the adapter has no trained parameters");
  state.adapter_enabled = false;
  if (!layer(x).equal(plain))
    throw PluginError(name, "apply", "a layer whose adapter is off does not compute what it computes without one");
  state.adapter_enabled = true;
  const at::Tensor y = plugin::guard(name, "apply", [&] { return layer(x); });
  if (y.sizes() != plain.sizes() || y.scalar_type() != plain.scalar_type())
    throw PluginError(name, "apply", "the output has another shape or dtype than the layer's");
  cells.facts.emplace_back(y.equal(plain) ? "a fresh adapter changes nothing" : "a fresh adapter changes the output");
  y.pow(2).sum().backward();
  for (const Parameter* parameter : trained)
    if (const at::Tensor& grad = parameter->value().grad(); grad.defined() && !at::isfinite(grad).all().item<bool>())
      throw PluginError(name, "apply", "the gradient of " + parameter->name() + " is not finite");
  const NamedTensors exported = plugin::guard(name, "export_layer", [&] { return adapter->export_layer(state); });
  if (exported.empty()) throw PluginError(name, "export_layer", "nothing is exported of a layer");
  for (const auto& [key, tensor] : exported) {
    if (!key.starts_with("layer."))
      throw PluginError(name, "export_layer", "\"" + key + "\" does not begin with the layer's name");
    if (!tensor.defined() || !at::isfinite(tensor).all().item<bool>())
      throw PluginError(name, "export_layer", "\"" + key + "\" is empty or not finite");
  }
  cells.facts.push_back("off it changes nothing, its gradients are finite, a layer is exported in " +
                        std::to_string(exported.size()) + " tensors");
}

void check_with(plugin::Loader& loader, const plugin::Manifest& manifest, at::Device device, PluginCells& cells) {
  const bool adapter = manifest.schema.kind == "adapter";
  for (Setting setting : settings_on(miniature_of(loader, kModel), device)) {
    if (adapter && setting.trained == Trained::all) continue;  // has no adapter
    (adapter ? setting.adapter : setting.objective) = manifest.schema.name;
    add(cells, check_subsets(loader, setting, own_strategies(loader)));
  }
}

/// Devices that a split could be told by. Throws Error (unavailable).
void require_devices(const std::string& name, const std::vector<at::Device>& devices) {
  for (std::size_t i = 0; i < devices.size(); ++i)
    for (std::size_t j = i + 1; j < devices.size(); ++j)
      if (devices[i] == devices[j] || devices[i].type() != devices[j].type())
        throw Error(ExitCode::unavailable,
                    "--device: " + devices[i].str() + " and " + devices[j].str() + " are not two devices of one kind");
  if (devices.size() >= 2) return;
  throw Error(ExitCode::unavailable,
              "the placement \"" + name +
                  "\" needs two devices to be proven, since on one there is nothing to place: name them with --device, "
                  "e.g. --device cuda:0 --device cuda:1",
              "PLACEMENT_DEVICES");
}

/// Settings with as many micro-batches as make a pipeline. A plan that leaves all on one device proves nothing.
void check_placement(plugin::Loader& loader, const std::string& name, const std::vector<at::Device>& devices,
                     PluginCells& cells) {
  require_devices(name, devices);
  for (const Setting& single : settings_on(miniature_of(loader, kModel), devices.front())) {
    Setting placed = single;
    placed.placement = name;
    placed.devices = devices;
    placed.several_devices = true;
    const auto run = [&](const Setting& setting) { return run_cell(loader, setting, stack_of(loader, {})); };
    cells.rows.push_back(compare_cells(
        placed, "placement " + name, "placement single", [&] { return run(placed); }, [&] { return run(single); }));
  }
}

}  // namespace

bool PluginCells::passed() const {
  std::map<std::string, bool> ran;  // by setting: what refuses everything is not proven
  for (const Row& row : rows) {
    if (!row.passed()) return false;
    ran[row.setting] |= row.verdict == Row::equal;
  }
  return std::all_of(ran.begin(), ran.end(), [](const auto& setting) { return setting.second; });
}

PluginCells check_plugin(plugin::Loader& loader, const plugin::Manifest& manifest, const std::string& model_folder,
                         const std::vector<at::Device>& devices) {
  PluginCells cells;
  const std::string& kind = manifest.schema.kind;
  const at::Device device = devices.front();
  if (kind == "memory") check_memory(loader, manifest.schema.name, device, cells);
  if (kind == "model") check_model(loader, manifest, model_folder, device, cells);
  if (kind == "adapter") {
    check_adapter_layer(loader, manifest, cells);
    check_adapter_file(loader, manifest, cells);
  }
  if (kind == "adapter" || kind == "objective") check_with(loader, manifest, device, cells);
  if (kind == "placement") check_placement(loader, manifest.schema.name, devices, cells);
  return cells;
}

}  // namespace trainer::prove
