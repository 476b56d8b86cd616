#include <base/units.hpp>
#include <prove/recipe_proof.hpp>

#include <algorithm>
#include <cstdio>

namespace trainer::prove {
namespace {

using Names = std::vector<std::string>;

/// " cpu", " cuda:0 cuda:1": each once, in order.
std::string devices_of(const PlacementPlan& plan) {
  std::vector<at::Device> all{plan.prologue};
  all.insert(all.end(), plan.blocks.begin(), plan.blocks.end());
  all.push_back(plan.epilogue);
  std::string text;
  for (const at::Device device : all)
    if (text.find(" " + device.str()) == std::string::npos) text += " " + device.str();
  return text;
}

/// A cut model keeps blocks of each way in which a plan runs blocks of a type.
assembly::Cut cut_for(const std::optional<planner::BudgetPlan>& plan) {
  if (!plan) return {};
  std::map<std::string, std::string> ways;
  for (const planner::PlannedBlock& block : plan->blocks) ways[block.name] = block.way;
  return {[ways](const Block& block) {
    const auto way = ways.find(block.info().name);
    return way == ways.end() ? std::string() : way->second;
  }};
}

/// Equal zeros prove nothing.
void require_substance(const Trajectory& base) {
  for (const auto& [name, list] : base.gradients)
    for (const at::Tensor& gradient : list)
      if (gradient.count_nonzero().item<int64_t>() > 0) return;
  throw Error(ExitCode::bad_input,
              "every gradient of the run without strategies is zero: nothing can be proven with these weights (are "
              "they really there? with --random-weights the file's shapes are enough)");
}

/// How one run of a comparison uses the strategies.
struct Use {
  Names strategies{};         ///< those that act
  bool placed = false;        ///< as the recipe's placement says; otherwise on the first device
  bool packing_only = false;  ///< weights are packed, and nothing else that the strategies do is done
  bool expanded = false;      ///< nothing acts, but weights are what the packing says they are, held densely
};

class Prover {
 public:
  Prover(assembly::Assembly& assembly, const Sizes& sizes, bool random_weights)
      : assembly_(assembly),
        sizes_(sizes),
        weights_(random_weights ? assembly::Weights::random : assembly::Weights::file),
        cut_(cut_for(assembly.strategies.plan())) {
    proof_.steps = kSteps;
  }

  Proof prove() {
    const Names all = assembly_.strategies.names(), packing = assembly_.strategies.packing();
    Trajectory base;
    try {
      base = run({.strategies = packing, .packing_only = true});
    } catch (const PluginError& error) {  // what packs does not keep its promises: there is nothing to compare with
      proof_.lines.push_back(
          {.subset = join(packing, "no strategy"), .result = std::string("FAILED: ") + error.what()});
      return std::move(proof_);
    }
    require_substance(base);
    compare_placed(all, packing, base);
    require_recompute();
    if (!proof_.passed() && all.size() + (split() ? 1 : 0) > 1) name_the_cause(all, packing, base);
    if (!packing.empty()) judge_packing(packing, base);
    return std::move(proof_);
  }

 private:
  [[nodiscard]] bool split() const { return assembly_.recipe.placement.kind != "single"; }

  execution::MemoryStack stack_for(const Use& use) {
    execution::MemoryStack stack =
        assembly_.strategies.stack(use.strategies, execution::MemoryStack::Promises::checked);
    if (use.packing_only) stack.keep_packing_only();
    stack.set_partial();
    return stack;
  }

  Trajectory run(const Use& use) {
    const recipe::Recipe& recipe = assembly_.recipe;
    const at::Device first = assembly_.devices.training().front();
    planner::install_byte_counter();
    const planner::PeakMark held(first);
    const assembly::OneDevice one_device;
    const auto placement = use.placed ? assembly_.components.placement() : nullptr;
    assembly::LoadOptions options{weights_, use.placed ? placement.get() : &one_device};
    options.cut = &cut_;
    options.expanded = use.expanded;
    assembly::LoadedModel loaded = assembly_.models.load(stack_for(use), options);
    const auto objective = assembly_.components.objective();
    if (use.placed || proof_.model.empty()) describe(loaded, shapes_of(*loaded.model, *objective, sizes_));
    const bool fused = recipe.optimizer.fused_backward;
    return train_loaded(loaded, *objective, held,
                        {sizes_, recipe.train.batch_size, recipe.train.batch_size / recipe.train.micro_batch_size,
                         first, static_cast<uint64_t>(recipe.run.seed), fused ? 0 : 1.0, fused && use.placed});
  }

  void describe(const assembly::LoadedModel& loaded, const SampleShapes& shapes) {
    const recipe::Recipe& recipe = assembly_.recipe;
    proof_.model = loaded.model->describe();
    proof_.blocks.clear();
    for (const Block* block : loaded.model->blocks())
      proof_.blocks += (proof_.blocks.empty() ? "" : ", ") + block->info().name;
    proof_.inputs = shapes.text() + "; " + std::to_string(recipe.train.batch_size) + " samples in " +
                    std::to_string(recipe.train.batch_size / recipe.train.micro_batch_size) + " micro-batches; " +
                    recipe.model.dtype + " on" + devices_of(loaded.placement);
    int64_t count = 0;
    for (const Parameter* parameter : loaded.trained) count += parameter->value().numel();
    proof_.trained = (loaded.adapter ? loaded.adapter->describe() + " on " + std::to_string(loaded.adapted.size()) +
                                           " of the cut model's layers, "
                                     : std::string("all, ")) +
                     format_count(count) + " parameters";
    proof_.weight_bytes = std::max(proof_.weight_bytes, loaded.inventory.weight_bytes);
  }

  /// Nor do equal runs when the blocks that the strategies recompute are not among those of the cut model.
  void require_recompute() {
    if (assembly_.strategies.plan() || !proof_.passed() || recomputed_) return;
    if (!assembly_.strategies.stack().recomputes()) return;
    throw Error(
        ExitCode::bad_recipe,
        "nothing can be proven: the recipe's strategies recompute none of the blocks that the model is cut to (" +
            proof_.blocks + "); prove it with --set memory.<strategy>.blocks naming one of them");
  }

  /// Adds a comparison to the table. `needed`: running out of memory ends the proof, since there is none without it.
  void add(Row row, bool needed, const std::function<void(Row&)>& make) {
    judge(
        row, /*may_refuse=*/false, [&] { make(row); },
        [&] {
          if (needed) throw;
          row.verdict = Row::not_compared;
          row.result = "NOT COMPARED: there is no room for this run on the device";
        });
    proof_.lines.push_back(std::move(row));
  }

  void compare_placed(const Names& strategies, const Names& packing, const Trajectory& base) {
    const std::string placement = split() ? " on " + assembly_.recipe.placement.kind : "";
    const std::string against = packing.empty() ? "the plain run" : join(packing) + " alone";
    Row row{.subset = join(strategies, "no strategy") + placement, .against = against};
    add(std::move(row), /*needed=*/true, [&](Row& line) {
      const Trajectory trained = run({strategies, /*placed=*/true});
      measure(line, trained);
      compare(line, trained, base);
      if (proof_.lines.empty()) proof_.recompute = trained.recompute, recomputed_ = trained.recomputed;
    });
  }

  void name_the_cause(const Names& all, const Names& packing, const Trajectory& base) {
    if (split() && packing.size() < all.size()) compare_placed(packing, packing, base);
    for (const std::string& name : all) {
      if (std::find(packing.begin(), packing.end(), name) != packing.end()) continue;
      Names alone = packing;
      alone.push_back(name);
      if (alone.size() < all.size()) compare_placed(alone, packing, base);
    }
  }

  /// Backward and forward of packed weights are those of what they say they are, and that is near what the file holds.
  void judge_packing(const Names& packing, const Trajectory& base) {
    const recipe::Tolerance tolerance = assembly_.strategies.tolerance_of(packing.front());
    add({.subset = join(packing), .against = "its weights held densely"}, /*needed=*/false,
        [&](Row& line) { compare_expanded(line, base, run({.strategies = packing, .expanded = true}), tolerance); });
    add({.subset = join(packing), .against = "the plain run"}, /*needed=*/false, [&](Row& line) {
      const std::optional<Trajectory> dense = dense_run(line);
      if (!dense) return;
      const bool near = is_near_dense(line, base, *dense, tolerance);
      line.verdict = near ? Row::equal : Row::differs;
      char text[160];
      std::snprintf(text, sizeof text, "loss %.6g, dense %.6g; %s, %s the declared %g", base.losses.front(),
                    dense->losses.front(), line.apart->text().c_str(), near ? "within" : "MORE THAN", tolerance.dense);
      line.result = text;
    });
  }

  /// The run with the weights of the file; nothing where these are packed themselves.
  std::optional<Trajectory> dense_run(Row& line) {
    try {
      return run({});
    } catch (const Error& error) {
      if (error.code() != "MODEL_SCALES") throw;
      line.verdict = Row::not_compared;
      line.result = "NOT COMPARED: the file holds packed weights, there are no others";
      return std::nullopt;
    }
  }

  assembly::Assembly& assembly_;
  Sizes sizes_;
  assembly::Weights weights_;
  assembly::Cut cut_;
  Proof proof_;
  bool recomputed_ = false;  ///< a block of the cut model was
};

}  // namespace

Proof prove_recipe(assembly::Assembly& assembly, const Sizes& sizes, bool random_weights) {
  return Prover(assembly, sizes, random_weights).prove();
}

}  // namespace trainer::prove
