#include <base/units.hpp>
#include <checkpoint/recovery.hpp>
#include <planner/byte_counter.hpp>
#include <planner/shape_kernels.hpp>
#include <planning/budget.hpp>
#include <planning/conditioning.hpp>
#include <planning/recipe_budget.hpp>
#include <planning/run_data.hpp>
#include <recipe/write.hpp>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>

namespace trainer::planning {
namespace {

constexpr int64_t kMegabyte = 1'000'000;

/// All weight formats to plan for, the plain one first.
std::vector<std::string> formats_of(assembly::Assembly& assembly, const std::string& only) {
  std::vector<std::string> labels{"none"};
  // Trained weights are never packed.
  if (assembly.recipe.adapter)
    for (const assembly::CandidateStrategy& format : assembly::make_candidates(assembly.components.plugins()).formats)
      labels.push_back(format.label);
  if (!only.empty()) std::erase_if(labels, [&](const std::string& label) { return label != only; });
  return labels;
}

std::vector<int64_t> held_on_dry_devices(const assembly::Assembly& assembly) {
  std::vector<int64_t> bytes;
  for (const at::Device memory : assembly.devices.memories())
    bytes.push_back(planner::bytes_in_use(assembly.devices.dry(memory)).current);
  return bytes;
}

/// Calls `use` with the question that `label` as weight format asks.
template <typename Use>
auto with_format(assembly::Assembly& assembly, const BatchShape& batch, const std::string& label, const Use& use) {
  assembly::Candidates candidates = assembly::make_candidates(assembly.components.plugins());
  std::vector<execution::MemoryStack::Named> strategies;
  for (assembly::CandidateStrategy& format : candidates.formats) {
    if (format.label != label) continue;
    std::erase_if(candidates.recompute,
                  [&](const assembly::CandidateStrategy& other) { return !assembly::compatible(format, other); });
    strategies.push_back({format.name, std::move(format.strategy), format.settings});
  }
  auto made = std::make_unique<assembly::PlannedRecompute>(std::move(candidates.recompute));
  assembly::PlannedRecompute& planned = *made;
  strategies.push_back({assembly::kBudget, std::move(made)});
  std::vector<int64_t> held = held_on_dry_devices(assembly);
  const DryModel model = dry_model(assembly, execution::MemoryStack(std::move(strategies)), batch);
  const DryParts parts = model.parts(assembly.recipe);
  const std::vector<int64_t> with_model = held_on_dry_devices(assembly);
  for (std::size_t i = 0; i < held.size(); ++i) held[i] = with_model[i] - held[i];
  const RunData data = held_data(assembly.recipe, batch, files_of(assembly.recipe));
  held.front() += data.prompts;
  held.at(static_cast<std::size_t>(assembly.devices.dry(at::kCPU).index())) += data.cached;
  return use(BudgetCase{parts, planned, label, std::move(held), assembly.devices.training().front().type()});
}

void add(std::string& list, const std::string& item) { list += (list.empty() ? "" : ", ") + item; }

/// "data.0.resolution (now 1024)": of the source with the largest pictures.
std::string resolution_key(const recipe::Recipe& recipe) {
  const auto pixels = [](const recipe::Data& source) { return source.resolution.front() * source.resolution.back(); };
  const auto largest = std::max_element(recipe.data.begin(), recipe.data.end(),
                                        [&](const auto& a, const auto& b) { return pixels(a) < pixels(b); });
  std::string now;
  for (const int64_t side : largest->resolution) now += (now.empty() ? "" : "x") + std::to_string(side);
  return "data." + std::to_string(largest - recipe.data.begin()) + ".resolution (now " + now + ")";
}

/// Keys that would lower the need, with their values now: numbers to lower, then settings to change.
std::string advice(const recipe::Recipe& recipe) {
  std::string lower, other;
  if (recipe.train.micro_batch_size > 1)
    add(lower, "train.micro_batch_size (now " + std::to_string(recipe.train.micro_batch_size) + ")");
  if (recipe.pictures() && !recipe.data.empty()) add(lower, resolution_key(recipe));
  if (recipe.text_encoder.options.has("max_tokens"))
    add(lower,
        "text_encoder.max_tokens (now " + std::to_string(recipe.text_encoder.options.get<int64_t>("max_tokens")) + ")");
  if (recipe.adapter && recipe.adapter->options.has("rank"))
    add(lower, "adapter.rank (now " + std::to_string(recipe.adapter->options.get<int64_t>("rank")) + ")");
  if (!recipe.adapter) {
    add(other, "an [adapter] instead of all parameters");
    if (!recipe.optimizer.fused_backward)
      add(other,
          "optimizer.fused_backward = true with train.max_grad_norm = 0 and a train.batch_size of one micro-batch");
  }
  if (recipe.model.dtype == "fp32") add(other, "model.dtype = \"bf16\"");
  if (recipe.train.ema_decay > 0) add(other, "train.ema.decay = 0");
  const std::vector<std::string>& devices = recipe.placement.devices;
  if (std::any_of(devices.begin(), devices.end(), [](const std::string& device) { return device != "cpu"; }))
    add(other, recipe.placement.kind == "single" ? "placement.kind = \"split\" over several placement.devices"
                                                 : "more placement.devices");
  if (other.empty()) return "lower " + lower;
  return lower.empty() ? "try " + other : "lower " + lower + "; or try " + other;
}

[[noreturn]] void refuse(const recipe::Recipe& recipe, int64_t smallest, const std::string& format) {
  const int64_t rounded = (smallest + kMegabyte - 1) / kMegabyte * kMegabyte;
  throw Error(ExitCode::bad_recipe,
              "memory.budget: " + recipe::bytes_text(recipe.memory.budget) +
                  " is too small: the smallest budget that works for this recipe is " + recipe::bytes_text(rounded) +
                  (format == "none" ? "" : ", with " + format) + "\n  To need less, " + advice(recipe) + ".",
              "BUDGET_TOO_SMALL");
}

}  // namespace

BatchShape batch_shape(execution::BatchSource& batches, const data::Bucket& largest, int64_t factor) {
  const Batch first = batches.batch(0, 0);
  BatchShape shape;
  shape.samples = static_cast<int64_t>(first.sample_keys.size());
  if (first.latents.defined()) {
    shape.latents = first.latents.sizes().slice(1).vec();
    if (largest.width > 0) {
      shape.latents[2] = largest.height / factor;
      shape.latents[3] = largest.width / factor;
    }
  }
  for (const auto& [name, tensor] : first.conditioning)
    shape.conditioning.push_back({name, tensor.scalar_type(), tensor.sizes().slice(1).vec()});
  return shape;
}

data::Bucket largest_of(const recipe::Recipe& recipe, int64_t factor, Of of) {
  data::Bucket largest;
  if (!recipe.pictures()) return largest;
  for (const recipe::Data& source : recipe.data) {
    const bool some_held = source.validation || recipe.validation.fraction > 0;
    if (of == Of::trained ? source.validation : !some_held) continue;
    const data::BucketGrid grid({source.resolution, factor, source.max_aspect});
    for (const data::Bucket& bucket : grid.buckets())
      if (bucket.width * bucket.height > largest.width * largest.height) largest = bucket;
  }
  return largest;
}

std::optional<BatchShape> foretold_shape(assembly::Assembly& assembly, const data::Bucket& largest, int64_t factor) {
  const assembly::LoadedModel loaded = assembly.models.load(assembly.strategies.stack(), {assembly::Weights::none});
  std::optional<Conditioning> conditioning =
      foretell_conditioning(assembly, *loaded.model, *assembly.components.objective());
  if (!conditioning) return std::nullopt;
  BatchShape shape;
  shape.samples = assembly.share.micro_batch_size;
  shape.conditioning = std::move(conditioning->tensors);
  if (const DiffusionTraits* traits = loaded.model->diffusion())
    shape.latents = {traits->latent_channels, 1, largest.height / factor, largest.width / factor};
  return shape;
}

DryParts DryModel::parts(const recipe::Recipe& recipe) const {
  const recipe::Optimizer& o = recipe.optimizer;
  return {*loaded.model,
          *objective,
          loaded.memory,
          loaded.placement,
          loaded.trained,
          optim::AdamWOptions{o.betas[0], o.betas[1], o.eps, o.weight_decay},
          recipe.train.ema_decay > 0,
          recipe.train.max_grad_norm,
          loaded.parts.micro_batches,
          batch,
          data,
          o.fused_backward};
}

DryModel dry_model(assembly::Assembly& assembly, execution::MemoryStack memory, const BatchShape& batch) {
  const auto placement = assembly.components.placement();
  return {assembly.models.load(std::move(memory), {assembly::Weights::shapes, placement.get()}),
          assembly.components.objective(), batch, assembly.devices.dry(at::kCPU)};
}

std::string planned_format(assembly::Assembly& assembly, const std::string& name) {
  if (name.empty()) return "none";
  for (const assembly::CandidateStrategy& format : assembly::make_candidates(assembly.components.plugins()).formats)
    if (execution::format_identity(format.name, format.settings) == name) return format.label;
  return {};
}

std::string format_of_checkpoint(assembly::Assembly& assembly, const std::vector<std::filesystem::path>& newest_first) {
  for (const std::filesystem::path& folder : newest_first)
    if (const std::optional<checkpoint::Manifest> manifest = checkpoint::whole_manifest(folder))
      if (const auto name = manifest->fingerprints.find("formats"); name != manifest->fingerprints.end())
        return planned_format(assembly, name->second);
  return {};
}

planner::BudgetPlan plan_budget(assembly::Assembly& assembly, const BatchShape& batch, const std::string& format) {
  const int64_t budget = assembly.recipe.memory.budget;
  std::optional<planner::BudgetPlan> best;
  std::exception_ptr refusal;
  std::vector<std::string> too_large;  // formats
  for (const std::string& label : formats_of(assembly, format)) {
    try {
      auto plan = with_format(assembly, batch, label,
                              [&](const BudgetCase& question) { return answer_budget(question, budget); });
      if (!plan) too_large.push_back(label);
      if (plan && (!best || plan->work < best->work)) best = std::move(plan);
    } catch (const Error& error) {
      if (error.exit_code() != ExitCode::bad_recipe) throw;
      refusal = std::current_exception();  // weights that the placement finds no room for, perhaps until packed
    }
    if (best && best->format == "none") break;  // packing changes what is trained: never for speed alone
  }
  if (best) return *best;
  if (too_large.empty() && refusal) std::rethrow_exception(refusal);
  if (too_large.empty())
    throw Error(ExitCode::bad_recipe,
                "memory.budget: this run packs its weights with \"" + format + "\", which no plugin offers now");
  std::map<int64_t, std::string> smallest;
  for (const std::string& label : too_large)
    smallest.emplace(with_format(assembly, batch, label, &smallest_budget), label);
  refuse(assembly.recipe, smallest.begin()->first, smallest.begin()->second);
}

std::optional<planner::BudgetPlan> choose_strategies(assembly::Assembly& assembly) {
  if (assembly.recipe.memory.budget == 0) return std::nullopt;
  std::string notes;  // make_plan says them
  const int64_t factor = planner::on_shapes("the autoencoder", [&] { return foretold_factor(assembly, notes); });
  const auto batch = foretold_shape(assembly, largest_of(assembly.recipe, factor), factor);
  if (!batch)
    throw Error(ExitCode::unavailable, "the model \"" + assembly.recipe.model.kind +
                                           "\" does not declare the shapes of its inputs, so no batch is known before "
                                           "the cache is made");
  const planner::BudgetPlan chosen = plan_budget(assembly, *batch);
  assembly.strategies.use(chosen);
  return chosen;
}

int64_t foretold_factor(assembly::Assembly& assembly, std::string& notes) {
  const recipe::Recipe& recipe = assembly.recipe;
  if (!recipe.pictures()) return 1;
  if (std::filesystem::exists(recipe.autoencoder.path)) return assembly.encoders.spatial_factor();
  constexpr int64_t kUsualFactor = 16;  // of the FLUX.2 family
  notes += "no autoencoder at hand: 16 pixels per latent cell are taken for granted";
  return kUsualFactor;
}

void require_effect(const assembly::Assembly& assembly, const execution::MemoryStack& memory) {
  const auto& devices = assembly.devices.training();
  const bool on_host = std::all_of(devices.begin(), devices.end(), [](at::Device device) { return device.is_cpu(); });
  for (const recipe::Component& component : assembly.recipe.memory.components)
    for (const auto& [key, value] : component.options.values())
      if (!on_host && recipe::toml_text(value).find("scaled_dot_product") != std::string::npos) return;
  memory.after_first_step();
}

std::vector<planner::WayRow> strategy_rows(assembly::Assembly& assembly, const BatchShape& batch) {
  const DryModel model = dry_model(assembly, assembly.strategies.stack(), batch);
  std::string names;
  for (const std::string& name : assembly.recipe.memory.strategies) names += (names.empty() ? "" : " + ") + name;
  const std::vector<BlockPlan> blocks = dry_blocks(model.parts(assembly.recipe));
  // Whether a residency has an effect shows when all blocks have run, and some tell at the next step.
  if (model.loaded.memory.residency() != nullptr) dry_step(model.parts(assembly.recipe));
  require_effect(assembly, model.loaded.memory);
  return rows_of(blocks, [&](std::size_t i) { return blocks[i].options.recompute ? names : std::string("none"); });
}

std::vector<planner::WayRow> candidate_rows(assembly::Assembly& assembly, const BatchShape& batch,
                                            const std::string& name) {
  assembly::Candidates candidates = assembly::make_candidates(assembly.components.plugins());
  std::erase_if(candidates.recompute, [&](const assembly::CandidateStrategy& one) { return one.name != name; });
  auto made = std::make_unique<assembly::PlannedRecompute>(std::move(candidates.recompute));
  assembly::PlannedRecompute& planned = *made;
  std::vector<execution::MemoryStack::Named> strategies;
  strategies.push_back({name, std::move(made)});
  const DryModel model = dry_model(assembly, execution::MemoryStack(std::move(strategies)), batch);
  const DryParts parts = model.parts(assembly.recipe);
  std::vector<planner::WayRow> rows;
  for (std::size_t way = 0; way < planned.ways(); ++way)
    for (planner::WayRow& row :
         rows_of(blocks_run(parts, planned, way), [&](std::size_t) { return planned.label(way); }))
      rows.push_back(std::move(row));
  std::stable_sort(rows.begin(), rows.end(),
                   [](const planner::WayRow& a, const planner::WayRow& b) { return a.type < b.type; });
  return rows;
}

}  // namespace trainer::planning
