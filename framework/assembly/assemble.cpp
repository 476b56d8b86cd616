#include <adapter/inject.hpp>
#include <matmul/matmul.hpp>
#include <planner/shape_source.hpp>
#include <recipe/load.hpp>
#include <recipe/options_identity.hpp>
#include <recipe/write.hpp>
#include <assembly/lora_families.hpp>
#include <assembly/assemble.hpp>
#include <assembly/device.hpp>
#include <assembly/part_costs.hpp>
#include <assembly/planned.hpp>
#include <weights/model_files.hpp>

#include <algorithm>

namespace trainer::assembly {
namespace {

constexpr auto kBudget = "memory.budget";  // what recomputes as a plan says

std::string config_of(const weights::ModelFiles& files) { return files.config().value_or(""); }

std::shared_ptr<weights::ModelFiles> open_files(const std::string& path, const std::string& component) {
  return weights::ModelFiles::open(path, {.component = component});
}

/// What cannot be done by several processes, and each one's share of the rest.
distributed::Share share_among(const recipe::Recipe& recipe, const distributed::Place& place) {
  if (!place.alone() && recipe.optimizer.fused_backward)
    throw Error(ExitCode::bad_recipe,
                recipe.file + ": optimizer.fused_backward: parameters are updated before the gradients of the other " +
                    std::to_string(place.size - 1) + " ranks are known; leave it out, or start one process");
  try {
    return distributed::share_of(recipe.train.batch_size, recipe.train.micro_batch_size, place.rank, place.size);
  } catch (const Error& error) {
    throw error.context(recipe.file);
  }
}

/// The host has one memory, whatever index it is called by.
bool is_same(at::Device a, at::Device b) { return a == b || (a.is_cpu() && b.is_cpu()); }

/// Every text has as many tokens, and no vocabulary is read.
class LongestText final : public Tokenizer {
 public:
  explicit LongestText(std::optional<int64_t> tokens) : tokens_(tokens) {}
  [[nodiscard]] std::vector<int64_t> encode(std::string_view) const override {
    guessed_ = !tokens_;
    return std::vector<int64_t>(static_cast<std::size_t>(tokens_.value_or(kUsualTokens)), 0);
  }
  [[nodiscard]] std::optional<int64_t> id(std::string_view) const override { return 0; }
  [[nodiscard]] bool guessed() const { return guessed_; }

 private:
  static constexpr int64_t kUsualTokens = 512;
  std::optional<int64_t> tokens_;
  mutable bool guessed_ = false;
};

/// `keep = "block", granularity = "tensor"`: what a recipe says beyond the defaults of a memory strategy.
std::string changed_options(const recipe::ComponentSchema& schema, const recipe::Component& component) {
  std::string text;
  for (const recipe::OptionSpec& spec : schema.options) {
    const auto given = component.options.values().find(spec.key);
    if (given == component.options.values().end() || recipe::equal(given->second, spec.fallback)) continue;
    text += (text.empty() ? "" : ", ") + spec.key + " = " + recipe::toml_text(given->second);
  }
  return text;
}

/// Of the devices that train, by the manifests of the strategies.
void require_capabilities(const recipe::Memory& memory, const plugin::Found& found,
                          const std::vector<at::Device>& devices) {
  for (const recipe::Component& component : memory.components)
    for (const plugin::Manifest& manifest : found.manifests)
      if (manifest.schema.kind == "memory" && manifest.schema.name == component.kind && manifest.cuda_capability > 0)
        for (const at::Device device : devices)
          require_capability(component.position.text() + ": memory.strategies: \"" + component.kind + "\"",
                             manifest.cuda_capability, device, capability_of(device));
}

/// A strategy that packs weights and packs none was set up wrongly.
void require_packed(const LoadedModel& loaded) {
  if (loaded.memory.format() == nullptr || loaded.inventory.packed_layers > 0) return;
  const std::string name = loaded.memory.format_name();
  throw Error(ExitCode::bad_recipe,
              "memory." + name.substr(0, name.find(' ')) +
                  ": it packs no layer of this model; exclude fewer layers, or leave the strategy "
                  "out of memory.strategies");
}

}  // namespace

LoraFamily lora_family(const ModelComponent& component) {
  return component.lora_family != nullptr ? component.lora_family() : adapter::plain_family(component.name);
}

at::ScalarType dtype_of(const std::string& name) { return name == "fp32" ? at::kFloat : at::kBFloat16; }

at::Device Assembly::device_of(const recipe::Component& component) const {
  if (component.device.empty()) return devices_.front();
  const std::vector<at::Device> named = parse_devices(
      std::vector<std::string>{component.device}, component.position.text() + ": device of \"" + component.kind + "\"");
  return use_ == Use::plan ? named.front()
                           : devices_of_process(named, recipe_.placement.devices.size(), place_).front();
}

Assembly::Assembly(const Request& request, Use use, const distributed::Place& place)
    : use_(use), loader_(request.plugins), place_(place) {
  recipe_ = recipe::load(request.recipe, request.overrides, plugin::schemas(loader_.found()),
                         {.paths_must_exist = use == Use::run});
  devices_ = parse_devices(recipe_.placement.devices, recipe_.placement.position.text() + ": placement.devices");
  share_ = share_among(recipe_, place);
  matmul::use(recipe_.train.matmul == "auto"     ? matmul::suited()
              : recipe_.train.matmul == "onednn" ? matmul::Library::onednn
                                                 : matmul::Library::mkl);
  if (use_ != Use::plan) {
    open_devices(named_devices(), request);
    devices_ = devices_of_process(devices_, devices_.size(), place);
    require_capabilities(recipe_.memory, loader_.found(), devices_);
  }
  note_memories();
}

std::vector<at::Device> Assembly::named_devices() const {
  std::vector<std::string> names = recipe_.placement.devices;
  for (const recipe::Component* encoder : {&recipe_.text_encoder, &recipe_.autoencoder})
    if (!encoder->device.empty()) names.push_back(encoder->device);
  return parse_devices(names, recipe_.placement.position.text() + ": placement.devices");
}

void Assembly::note_memories() {
  const auto add = [this](at::Device device) {
    if (std::none_of(memories_.begin(), memories_.end(), [&](at::Device other) { return is_same(device, other); }))
      memories_.push_back(device);
  };
  for (const at::Device device : devices_) add(device);
  for (const recipe::Component* encoder : {&recipe_.text_encoder, &recipe_.autoencoder}) add(device_of(*encoder));
  add(at::kCPU);
  std::vector<bool> cuda;
  for (const at::Device memory : memories_) cuda.push_back(memory.is_cuda());
  dry_devices_ = std::make_shared<DryDevices>(cuda);
}

at::Device Assembly::dry(at::Device device) const {
  const auto found =
      std::find_if(memories_.begin(), memories_.end(), [&](at::Device one) { return is_same(one, device); });
  return {at::kMeta, static_cast<at::DeviceIndex>(found - memories_.begin())};
}

PlacementPlan Assembly::on_dry_devices(PlacementPlan plan) const {
  plan.prologue = dry(plan.prologue);
  plan.epilogue = dry(plan.epilogue);
  for (at::Device& device : plan.blocks) device = dry(device);
  return plan;
}

bool Assembly::on_shapes(ModelUse use) const { return use_ == Use::plan || use == ModelUse::dry; }

std::shared_ptr<WeightSource> Assembly::text_encoder_weights() {
  if (recipe_.text_encoder.path.empty()) return nullptr;
  return open_files(recipe_.text_encoder.path, "text_encoder");
}

std::shared_ptr<WeightSource> Assembly::autoencoder_weights() { return open_files(recipe_.autoencoder.path, "vae"); }

std::shared_ptr<text::SdkTokenizer> Assembly::tokenizer() {
  if (recipe_.text_encoder.tokenizer.empty()) return nullptr;
  return text::SdkTokenizer::load(recipe_.text_encoder.tokenizer);
}

EncoderContext Assembly::encoder_context(const recipe::Component& component, std::shared_ptr<WeightSource> files,
                                         bool on_shapes) const {
  const std::string config = files ? config_of(dynamic_cast<const weights::ModelFiles&>(*files)) : "";
  const at::Device device = device_of(component);
  if (on_shapes && files != nullptr) files = planner::shapes_of(std::move(files), dry(at::kCPU));
  EncoderContext context{component.options, std::move(files), config, nullptr};
  context.dtype = dtype_of(component.dtype);
  context.device = on_shapes ? dry(device) : device;
  return context;
}

std::unique_ptr<TextEncoder> Assembly::create_text_encoder(const EncoderContext& context) {
  const std::string& kind = recipe_.text_encoder.kind;
  return plugin::guard(kind, "create",
                       [&] { return loader_.registry().text_encoders.find(kind)->second.create(context); });
}

std::unique_ptr<TextEncoder> Assembly::text_encoder() {
  if (use_ == Use::plan) return dry_text_encoder().encoder;
  loader_.require("text_encoder", recipe_.text_encoder.kind);
  EncoderContext context = encoder_context(recipe_.text_encoder, text_encoder_weights(), /*on_shapes=*/false);
  context.tokenizer = tokenizer();
  return create_text_encoder(context);
}

std::optional<int64_t> Assembly::longest_text() const {
  const Table& values = recipe_.text_encoder.options.values();
  const auto it = values.find("max_tokens");
  if (it == values.end() || it->second.get_if<int64_t>() == nullptr) return std::nullopt;
  return *it->second.get_if<int64_t>();
}

Assembly::DryEncoder Assembly::dry_text_encoder() {
  loader_.require("text_encoder", recipe_.text_encoder.kind);
  EncoderContext context = encoder_context(recipe_.text_encoder, text_encoder_weights(), /*on_shapes=*/true);
  const auto texts = std::make_shared<LongestText>(longest_text());
  context.tokenizer = texts;
  return {create_text_encoder(context), [texts] { return texts->guessed(); }};
}

std::unique_ptr<Autoencoder> Assembly::create_autoencoder(bool on_shapes) {
  const recipe::Component& component = recipe_.autoencoder;
  loader_.require("autoencoder", component.kind);
  const EncoderContext context = encoder_context(component, autoencoder_weights(), on_shapes);
  return plugin::guard(component.kind, "create",
                       [&] { return loader_.registry().autoencoders.find(component.kind)->second.create(context); });
}

std::unique_ptr<Autoencoder> Assembly::autoencoder() { return create_autoencoder(use_ == Use::plan); }

int64_t Assembly::spatial_factor() {
  try {
    return create_autoencoder(/*on_shapes=*/true)->spatial_factor();
  } catch (const std::exception&) {  // it reads values of its weights, or cannot be made at all, which is told now
    return autoencoder()->spatial_factor();
  }
}

std::unique_ptr<Objective> Assembly::objective() {
  const recipe::Component& component = recipe_.objective;
  loader_.require("objective", component.kind);
  return plugin::guard(component.kind, "create", [&] {
    return loader_.registry().objectives.find(component.kind)->second.create(component.options);
  });
}

std::unique_ptr<MemoryStrategy> Assembly::memory_strategy(const recipe::Component& component) {
  loader_.require("memory", component.kind);
  return plugin::guard(component.kind, "create", [&] {
    return loader_.registry().memory.find(component.kind)->second.create(component.options);
  });
}

execution::MemoryStack Assembly::planned_stack(const planner::BudgetPlan& plan, const std::vector<std::string>& names) {
  const auto wanted = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  Candidates candidates = make_candidates(loader_);
  std::vector<execution::MemoryStack::Named> strategies;
  bool found = plan.format == "none";
  for (CandidateStrategy& format : candidates.formats) {
    if (format.label != plan.format) continue;
    found = true;
    if (wanted(plan.format))
      strategies.push_back(
          {format.name, std::move(format.strategy), format.settings, tolerance_of(format.name).rounding});
  }
  if (!found)
    throw Error(ExitCode::bad_input,
                "the plan packs weights with \"" + plan.format + "\", which no plugin of this program offers now");
  auto recompute = std::make_unique<PlannedRecompute>(std::move(candidates.recompute));
  std::vector<std::size_t> ways;
  for (const planner::PlannedBlock& block : plan.blocks) ways.push_back(recompute->way(block.way));
  recompute->set(std::move(ways));
  if (wanted(kBudget)) strategies.push_back({kBudget, std::move(recompute)});
  return execution::MemoryStack(std::move(strategies));
}

std::vector<std::string> Assembly::strategies() const {
  if (!plan_) return recipe_.memory.strategies;
  if (plan_->format == "none") return {kBudget};
  return {plan_->format, kBudget};
}

recipe::Tolerance Assembly::tolerance_of(const std::string& strategy) const {
  return plugin::schema_of(loader_.found(), "memory", planner::strategy_of(strategy)).tolerance;
}

execution::MemoryStack Assembly::memory_stack() {
  return plan_ ? planned_stack(*plan_, strategies()) : memory_stack(recipe_.memory.strategies);
}

execution::MemoryStack Assembly::memory_stack(const std::vector<std::string>& names) {
  std::vector<execution::MemoryStack::Named> strategies;
  for (const recipe::Component& component : recipe_.memory.components) {
    if (std::find(names.begin(), names.end(), component.kind) == names.end()) continue;
    const recipe::ComponentSchema& schema = plugin::schema_of(loader_.found(), "memory", component.kind);
    strategies.push_back({component.kind, memory_strategy(component),
                          recipe::options_identity(component.options, schema), schema.tolerance.rounding,
                          changed_options(schema, component)});
  }
  return execution::MemoryStack(std::move(strategies));
}

PlacementPlan Assembly::plan_placement(const PlacementRequest& request) {
  const recipe::Placement& component = recipe_.placement;
  loader_.require("placement", component.kind);
  PlacementPlan plan = plugin::guard(component.kind, "plan", [&] {
    return loader_.registry().placements.find(component.kind)->second.create(component.options)->plan(request);
  });
  execution::check_plan(plan, request, component.kind);
  return plan;
}

std::unique_ptr<Model> Assembly::create_model(const LoadedModel& loaded, const std::string& config,
                                              SourceBuilder& builder) {
  const recipe::Component& component = recipe_.model;
  const ModelComponent& offered = loader_.registry().models.find(component.kind)->second;
  return plugin::guard(component.kind, "create", [&] {
    return offered.create(ModelContext{component.options, *loaded.source, config, builder});
  });
}

LoadedModel Assembly::load_model(ModelUse use) { return load_model(use, memory_stack()); }

LoadedModel Assembly::load_model(ModelUse use, execution::MemoryStack memory) {
  const recipe::Component& component = recipe_.model;
  loader_.require("model", component.kind);
  const ModelComponent& offered = loader_.registry().models.find(component.kind)->second;
  LoadedModel loaded;
  loaded.memory = std::move(memory);
  const auto files = open_files(component.path, "transformer");
  loaded.source = on_shapes(use) ? planner::shapes_of(files, dry(at::kCPU)) : files;
  if (offered.map_weights != nullptr)
    loaded.source = plugin::guard(component.kind, "map_weights", [&] { return offered.map_weights(loaded.source); });
  BuildOptions options;
  options.dtype = dtype_of(component.dtype);
  options.device = on_shapes(use) ? dry(devices_.front()) : devices_.front();
  options.trained = (use == ModelUse::train || use == ModelUse::dry) && !recipe_.adapter;
  options.headers_only = true;
  options.format = loaded.memory.format();
  refuse_packed_training(options);
  loaded.lora_family = lora_family(offered);
  // First from headers alone: the placement needs the blocks, and the weights need the placement.
  const std::string config = config_of(*files);
  SourceBuilder headers(*loaded.source, options);
  loaded.model = create_model(loaded, config, headers);
  PlacementRequest request = placement_request(*loaded.model, headers.inventory(), *loaded.source, options);
  request.devices = devices_;
  request.micro_batches = share_.micro_batches;
  loaded.parts = request;
  loaded.inventory = headers.inventory();
  if (use == ModelUse::outline) return loaded;
  loaded.placement = plan_placement(request);
  if (on_shapes(use)) loaded.placement = on_dry_devices(std::move(loaded.placement));
  loaded.devices = execution::LayerDevices(*loaded.model, loaded.placement, recipe_.placement.kind);
  if (use != ModelUse::inspect) {
    options.headers_only = false;
    options.before_weight = before_weight_;
    options.device = loaded.placement.prologue;
    options.device_of = [&loaded](const std::string& name) { return loaded.devices.of(name); };
    SourceBuilder builder(*loaded.source, options);
    loaded.model = create_model(loaded, config, builder);
    loaded.inventory = builder.inventory();
    require_packed(loaded);
  }
  if (on_shapes(use)) loaded.memory.store_on_shapes(dry(at::kCPU));
  if (use != ModelUse::sample) attach_adapter(loaded, use);
  if (WeightResidency* residency = loaded.memory.residency(); residency != nullptr && use != ModelUse::inspect)
    residency->plan(loaded.model->blocks());
  return loaded;
}

void Assembly::make_adapter(LoadedModel& loaded, std::span<const Linear> layers) {
  const recipe::Component& component = *recipe_.adapter;
  loader_.require("adapter", component.kind);
  loaded.adapter_kind = component.kind;
  loaded.adapter = plugin::guard(component.kind, "create", [&] {
    return loader_.registry().adapters.find(component.kind)->second.create(component.options);
  });
  if (component.path.empty()) return;
  const weights::TensorFile file(component.path, {weights::Profile::compat, weights::ReadMode::copy});
  adapter::ReadAdapter read = read_for(loader_.found(), file, loaded.lora_family, component.kind);
  adapter::check_layers(component.path, read, layers);
  loaded.file_layers = read.layers();
  plugin::guard(component.kind, "start_from", [&] { loaded.adapter->start_from(std::move(read.file)); });
}

void Assembly::attach_adapter(LoadedModel& loaded, ModelUse use) {
  if (!recipe_.adapter) {
    loaded.trained = trained_parameters(loaded.inventory);
    return;
  }
  make_adapter(loaded, loaded.inventory.linears);
  loaded.adapted = adapter::targeted(*loaded.adapter, *loaded.model, loaded.inventory.linears, loaded.file_layers);
  if (use != ModelUse::train && use != ModelUse::dry) return;
  const auto device_of = [&](const std::string& layer) { return loaded.devices.of(layer); };
  loaded.trained = plugin::guard(recipe_.adapter->kind, "attach", [&] {
    return adapter::inject(*loaded.adapter, loaded.adapted, static_cast<uint64_t>(recipe_.run.seed), device_of,
                           dtype_of(recipe_.model.dtype));
  });
}

}  // namespace trainer::assembly
