#include <adapter/inject.hpp>
#include <adapter/lora.hpp>
#include <cache/key.hpp>
#include <objective/flow_matching.hpp>
#include <recipe/load.hpp>
#include <train/assemble.hpp>
#include <train/device.hpp>
#include <weights/model_files.hpp>

#include <algorithm>

namespace trainer::train {
namespace {

plugin::Loader make_loader(const Request& request) {
  plugin::Loader loader(request.plugins);
  plugin::register_builtin(loader.registry(), objective::register_flow_matching);
  plugin::register_builtin(loader.registry(), adapter::register_lora);
  return loader;
}

std::string config_of(const weights::ModelFiles& files) { return files.config().value_or(""); }

std::shared_ptr<weights::ModelFiles> open_files(const std::string& path, const std::string& component) {
  return weights::ModelFiles::open(path, {.component = component});
}

std::vector<at::Device> device_of(const recipe::Component& component, const std::vector<at::Device>& otherwise) {
  if (component.device.empty()) return {otherwise.front()};
  return parse_devices(std::vector<std::string>{component.device},
                       component.position.text() + ": device of \"" + component.kind + "\"");
}

/// Until stages on several devices are executed, a plan must not ask for them; and it must run every micro-batch.
void require_one_stage(const PlacementPlan& plan, const std::string& name, at::Device device, int64_t micro_batches) {
  std::vector<at::Device> all = plan.blocks;
  all.insert(all.end(), {plan.prologue, plan.epilogue});
  if (std::any_of(all.begin(), all.end(), [&](at::Device used) { return used != device; }))
    throw PluginError(name, "plan", "it uses several devices; this version executes one stage on one device",
                      ExitCode::bad_recipe);
  std::vector<int> state(static_cast<std::size_t>(micro_batches), 0);
  for (const ScheduleStep& step : plan.schedule) {
    const bool known = step.stage == 0 && step.micro_batch >= 0 && step.micro_batch < micro_batches;
    if (!known || state[static_cast<std::size_t>(step.micro_batch)]++ != (step.pass == Pass::forward ? 0 : 1))
      throw PluginError(name, "plan",
                        "its schedule runs a part that is not there, or not in the order forward, backward");
  }
  if (std::any_of(state.begin(), state.end(), [](int passes) { return passes != 2; }))
    throw PluginError(name, "plan", "its schedule leaves out a micro-batch");
}

}  // namespace

at::ScalarType dtype_of(const std::string& name) { return name == "fp32" ? at::kFloat : at::kBFloat16; }

Assembly::Assembly(const Request& request) : loader_(make_loader(request)) {
  recipe_ = recipe::load(request.recipe, request.overrides, plugin::schemas(loader_.found()));
  if (recipe_.memory.budget > 0)
    throw Error(ExitCode::bad_recipe,
                "memory.budget: the planner is not part of this version; name the strategies in "
                "memory.strategies");
  devices_ = parse_devices(recipe_.placement.devices, recipe_.placement.position.text() + ": placement.devices");
  std::vector<at::Device> all = devices_;
  for (const recipe::Component* encoder : {&recipe_.text_encoder, &recipe_.autoencoder})
    all.push_back(device_of(*encoder, devices_).front());
  open_devices(all, request);
}

std::shared_ptr<WeightSource> Assembly::text_encoder_weights() {
  return open_files(recipe_.text_encoder.path, "text_encoder");
}

std::shared_ptr<WeightSource> Assembly::autoencoder_weights() { return open_files(recipe_.autoencoder.path, "vae"); }

std::shared_ptr<text::SdkTokenizer> Assembly::tokenizer() {
  return text::SdkTokenizer::load(recipe_.text_encoder.tokenizer);
}

EncoderContext Assembly::encoder_context(const recipe::Component& component,
                                         std::shared_ptr<WeightSource> weights) const {
  const std::string config = config_of(dynamic_cast<const weights::ModelFiles&>(*weights));
  EncoderContext context{component.options, std::move(weights), config, nullptr};
  context.dtype = dtype_of(component.dtype);
  context.device = device_of(component, devices_).front();
  return context;
}

std::unique_ptr<TextEncoder> Assembly::text_encoder() {
  const recipe::Component& component = recipe_.text_encoder;
  loader_.require("text_encoder", component.kind);
  EncoderContext context = encoder_context(component, text_encoder_weights());
  context.tokenizer = tokenizer();
  return plugin::guard(component.kind, "create",
                       [&] { return loader_.registry().text_encoders.find(component.kind)->second.create(context); });
}

std::unique_ptr<Autoencoder> Assembly::autoencoder() {
  const recipe::Component& component = recipe_.autoencoder;
  loader_.require("autoencoder", component.kind);
  const EncoderContext context = encoder_context(component, autoencoder_weights());
  return plugin::guard(component.kind, "create",
                       [&] { return loader_.registry().autoencoders.find(component.kind)->second.create(context); });
}

std::unique_ptr<Objective> Assembly::objective() {
  const recipe::Component& component = recipe_.objective;
  loader_.require("objective", component.kind);
  return plugin::guard(component.kind, "create", [&] {
    return loader_.registry().objectives.find(component.kind)->second.create(component.options);
  });
}

MemoryStack Assembly::memory_stack() {
  std::vector<MemoryStack::Named> strategies;
  for (const recipe::Component& component : recipe_.memory.components) {
    loader_.require("memory", component.kind);
    strategies.push_back(
        {component.kind,
         plugin::guard(
             component.kind, "create",
             [&] { return loader_.registry().memory.find(component.kind)->second.create(component.options); }),
         cache::options_identity(component.options)});
  }
  return MemoryStack(std::move(strategies));
}

PlacementPlan Assembly::placement_plan(const Model& model, int64_t micro_batches) {
  const recipe::Placement& component = recipe_.placement;
  loader_.require("placement", component.kind);
  PlacementRequest request;
  for (const Block* block : const_cast<Model&>(model).blocks()) request.block_names.push_back(block->info().name);
  request.micro_batches = micro_batches;
  request.devices = devices_;
  PlacementPlan plan = plugin::guard(component.kind, "plan", [&] {
    return loader_.registry().placements.find(component.kind)->second.create(component.options)->plan(request);
  });
  require_one_stage(plan, component.kind, devices_.front(), micro_batches);
  return plan;
}

LoadedModel Assembly::load_model(ModelUse use) {
  const recipe::Component& component = recipe_.model;
  loader_.require("model", component.kind);
  const ModelComponent& offered = loader_.registry().models.find(component.kind)->second;
  LoadedModel loaded;
  loaded.memory = memory_stack();
  const auto files = open_files(component.path, "transformer");
  loaded.source = files;
  if (offered.map_weights != nullptr)
    loaded.source = plugin::guard(component.kind, "map_weights", [&] { return offered.map_weights(files); });
  BuildOptions options;
  options.dtype = dtype_of(component.dtype);
  options.device = devices_.front();
  options.trained = use == ModelUse::train && !recipe_.adapter;
  options.headers_only = use == ModelUse::inspect;
  options.format = loaded.memory.format();
  if (options.trained && options.format != nullptr)
    throw Error(ExitCode::bad_recipe,
                "memory.strategies: a strategy packs the weights, but without [adapter] they are "
                "trained; add an adapter or leave the strategy out");
  SourceBuilder builder(*loaded.source, options);
  const std::string config = config_of(*files);
  loaded.model = plugin::guard(component.kind, "create", [&] {
    return offered.create(ModelContext{component.options, *loaded.source, config, builder});
  });
  loaded.inventory = builder.inventory();
  if (use != ModelUse::sample) attach_adapter(loaded, use);
  if (WeightResidency* residency = loaded.memory.residency(); residency != nullptr && use != ModelUse::inspect)
    residency->plan(loaded.model->blocks());
  return loaded;
}

void Assembly::attach_adapter(LoadedModel& loaded, ModelUse use) {
  if (!recipe_.adapter) {
    loaded.trained = trained_parameters(loaded.inventory);
    return;
  }
  const recipe::Component& component = *recipe_.adapter;
  loader_.require("adapter", component.kind);
  loaded.adapter = plugin::guard(component.kind, "create", [&] {
    return loader_.registry().adapters.find(component.kind)->second.create(component.options);
  });
  loaded.adapted = adapter::targeted(*loaded.adapter, *loaded.model, loaded.inventory.linears);
  if (use == ModelUse::train)
    loaded.trained =
        adapter::inject(*loaded.adapter, loaded.adapted, static_cast<uint64_t>(recipe_.run.seed), devices_.front());
}

}  // namespace trainer::train
