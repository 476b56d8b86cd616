/// @file See step_setup.hpp.
#include "step_setup.hpp"

#include <adapter/inject.hpp>
#include <nlohmann/json.hpp>
#include <recipe/default_options.hpp>
#include <support/device.hpp>
#include <weights/model_files.hpp>

#include "random_model.hpp"

namespace trainer::bench {
namespace {

/// Synthetic samples of one shape, the same every step.
class OneBatch final : public execution::BatchSource {
 public:
  OneBatch(const nlohmann::json& settings, int64_t channels, int64_t text_width, at::Device device) {
    const int64_t batch = settings.at("batch"), height = settings.at("height"), width = settings.at("width");
    const auto normal = [](uint64_t sample, at::IntArrayRef shape) {
      return execution::keyed_normal(KeyedRng(1, RngStream::synthetic, 0, sample), shape);
    };
    batch_.latents = normal(0, {batch, channels, 1, height, width}).to(device);
    batch_.conditioning["prompt_embeds"] = normal(1, {batch, settings.at("tokens").get<int64_t>(), text_width})
                                               .to(device, settings.at("dtype") == "bf16" ? at::kBFloat16 : at::kFloat);
    for (int64_t b = 0; b < batch; ++b) batch_.sample_keys.push_back(static_cast<uint64_t>(b));
  }
  [[nodiscard]] int64_t micro_batches() const override { return 1; }
  Batch batch(int64_t, int64_t) override { return batch_; }
  [[nodiscard]] std::vector<std::string> files(int64_t, int64_t) const override { return {"synthetic"}; }

 private:
  Batch batch_;
};

std::vector<plugin::SearchFolder> folders_of(const nlohmann::json& settings) {
  std::vector<plugin::SearchFolder> folders;
  for (const std::string folder : settings.at("plugins")) folders.push_back({folder, "build tree"});
  return folders;
}

/// The options that a component's manifest declares, with its defaults but for `changes`.
Options options_of(const plugin::Loader& loader, const std::string& kind, const std::string& name,
                   const Table& changes) {
  for (const plugin::Manifest& manifest : loader.found().manifests) {
    if (manifest.schema.kind != kind || manifest.schema.name != name) continue;
    Table values = recipe::default_options(manifest.schema).values();
    for (const auto& [key, value] : changes) values[key] = value;
    return {name, std::move(values)};
  }
  throw Error(ExitCode::bad_input, "no plugin \"" + name + "\" in the build");
}

Options objective_options() {
  return {"objective", Table{{"timesteps.distribution", {std::string("logit_normal")}},
                             {"timesteps.mean", {0.0}},
                             {"timesteps.std", {1.0}},
                             {"timesteps.scale", {1.29}},
                             {"timesteps.uniform_fraction", {0.0}},
                             {"timesteps.grid", {int64_t{0}}},
                             {"timesteps.shift", {std::string("none")}},
                             {"weighting", {std::string("none")}},
                             {"guidance", {1.0}}}};
}

}  // namespace

Setup::Setup(const nlohmann::json& settings)
    : device_(testing::open_device(settings.at("device"), "device")), loader_(folders_of(settings)) {
  loader_.require("adapter", "lora");
  loader_.require("objective", "flow_matching");
  load_strategies(settings);
  build_model(settings);
  const std::vector<Parameter*> trained = add_adapter(*model_, settings.at("rank"));
  objective_ = loader_.registry().objectives.at("flow_matching").create(objective_options());
  placement_.blocks.assign(model_->blocks().size(), device_);
  placement_.prologue = placement_.epilogue = device_;
  placement_.schedule = {{Pass::forward, 0, 0}, {Pass::backward, 0, 0}};
  optimizer_ = std::make_unique<optim::AdamW>(trained, optim::AdamWOptions{});
  const optim::LrSchedule schedule{.kind = "constant", .lr = 1e-4};
  execution::Parts parts{*model_, *objective_, *memory_, placement_, random_,
                         *data_,  *optimizer_, nullptr,  schedule,   0.0};
  parts.update_first = !device_.is_cpu();  // as a run does
  trainer_ = std::make_unique<execution::Trainer>(std::move(parts), 0);
}

void Setup::load_strategies(const nlohmann::json& settings) {
  std::vector<execution::MemoryStack::Named> strategies;
  const auto add = [&](const std::string& name, const Table& changes) {
    loader_.require("memory", name);
    strategies.push_back(
        {name, loader_.registry().memory.at(name).create(options_of(loader_, "memory", name, changes))});
  };
  const std::string kept = settings.at("checkpointing");
  const Value elide{settings.at("elide").get<bool>()};
  if (kept == "full") add("full_checkpointing", {{"elide", elide}});
  if (kept != "full" && kept != "none")
    add("selective_checkpointing", {{"elide", elide}, {"save", {Array{Value{kept}}}}});
  if (const std::string format = settings.at("format"); !format.empty())
    add(format, settings.at("fast_accumulation").get<bool>() ? Table{{"fast_accumulation", {true}}} : Table{});
  memory_ = std::make_unique<execution::MemoryStack>(std::move(strategies));
}

std::string Setup::open_weights(const nlohmann::json& settings, at::ScalarType dtype) {
  const std::string folder = settings.at("model");
  if (folder.empty()) {
    source_ = random_flux2(settings.at("shape"), dtype, device_);
    return {};
  }
  const std::shared_ptr<weights::ModelFiles> files = weights::ModelFiles::open(folder);
  source_ = files;
  if (const auto map = loader_.registry().models.at("flux2").map_weights; map != nullptr) source_ = map(source_);
  return files->config().value_or("");
}

void Setup::build_model(const nlohmann::json& settings) {
  loader_.require("model", "flux2");
  assembly::BuildOptions options;
  options.dtype = settings.at("dtype") == "bf16" ? at::kBFloat16 : at::kFloat;
  options.device = device_;
  options.format = memory_->format();
  const std::string config = open_weights(settings, options.dtype);
  builder_ = std::make_unique<assembly::SourceBuilder>(*source_, options);
  const Options model_options = options_of(loader_, "model", "flux2", {{"fused", {settings.at("fused").get<bool>()}}});
  model_ = loader_.registry().models.at("flux2").create(ModelContext{model_options, *source_, config, *builder_});
  parameters_ = builder_->inventory().parameter_count;
  data_ = std::make_unique<OneBatch>(settings, source_->find("x_embedder.weight")->shape[1],
                                     source_->find("context_embedder.weight")->shape[1], device_);
  if (memory_->residency() != nullptr) memory_->residency()->plan(model_->blocks());
}

std::vector<Parameter*> Setup::add_adapter(const Model& model, int64_t rank) {
  const Options lora("adapter", Table{{"rank", {rank}},
                                      {"alpha", {static_cast<double>(rank)}},
                                      {"init", {std::string("kaiming")}},
                                      {"targets", {std::string("default")}}});
  adapter_ = loader_.registry().adapters.at("lora").create(lora);
  const auto layers = adapter::select(builder_->inventory().linears, model.default_targets());
  return adapter::inject(*adapter_, layers, 0, device_);
}

std::pair<int64_t, double> Setup::recomputed() {
  const auto& reports = trainer_->recompute_state().reports;
  if (reports.empty()) return {-1, -1};
  std::pair<int64_t, double> sum{0, 0};
  for (const Block* block : model_->blocks()) {
    const RecomputeReport& report = reports.at(block->info().type);
    sum.first += report.recomputed_calls;
    sum.second += report.recomputed_flops;
  }
  return sum;
}

}  // namespace trainer::bench
