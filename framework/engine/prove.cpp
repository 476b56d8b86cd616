/// @file `trainer prove RECIPE`: the recipe's memory strategies against the run without them, on a model cut short.
#include <c10/util/Exception.h>
#include <base/device_error.hpp>
#include <base/files.hpp>
#include <base/log.hpp>
#include <base/printable.hpp>
#include <base/units.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/recovery.hpp>
#include <nlohmann/json.hpp>
#include <planner/byte_counter.hpp>
#include <prove/proof.hpp>
#include <assembly/assemble.hpp>
#include <engine/commands.hpp>
#include <planning/conditioning.hpp>
#include <planning/recipe_budget.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>

namespace trainer::engine {
namespace {

using prove::Trajectory;
using Names = std::vector<std::string>;

constexpr int64_t kSteps = 3;

std::string join(const Names& names, const std::string& none) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " + ") + name;
  return text.empty() ? none : text;
}

int64_t latent_factor(assembly::Assembly& assembly, std::string& notes) {
  const int64_t factor = planning::foretold_factor(assembly, notes);
  if (!notes.empty()) notes += "\n";
  return factor;
}

/// Sizes of the largest sample that the recipe's data can bring.
prove::Sizes largest_sizes(assembly::Assembly& assembly, int64_t factor, std::string& notes) {
  const recipe::Recipe& recipe = assembly.recipe();
  const data::Bucket largest = planning::largest_of(recipe, factor);
  const assembly::LoadedModel outline = assembly.load_model(assembly::ModelUse::outline);
  const auto conditioning = planning::foretell_conditioning(assembly, *outline.model, *assembly.objective());
  if (conditioning && !conditioning->note.empty()) notes += conditioning->note + "\n";
  return {largest.height / factor, largest.width / factor, conditioning ? conditioning->tokens() : 0};
}

/// What an earlier run in run.output was planned with.
struct StoredPlan {
  std::string file;
  planner::BudgetPlan plan;
};

/// nullopt and `damage`, why not, for a file that holds none.
std::optional<StoredPlan> stored_plan(const recipe::Recipe& recipe, std::optional<Error>& damage) {
  constexpr std::size_t kPlanLimit = 1 << 24;
  const std::filesystem::path file = std::filesystem::path(recipe.run.output) / "plan.json";
  if (!std::filesystem::exists(file)) return std::nullopt;
  try {
    return StoredPlan{file.string(), planner::parse_plan(read_file(file, kPlanLimit, "plan"), file.string())};
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::bad_input) throw;
    damage = error;
    return std::nullopt;
  }
}

/// The stored plan itself, where nothing else can be proven: it has to be one for this budget and this model.
planner::BudgetPlan plan_as_stored(assembly::Assembly& assembly, const StoredPlan& stored) {
  std::vector<std::string> names;
  const assembly::LoadedModel outline = assembly.load_model(assembly::ModelUse::outline);
  for (const Block* block : outline.model->blocks()) names.push_back(block->info().name);
  planner::require_blocks(stored.plan, names, stored.file);
  return stored.plan;
}

/// With memory.budget: what a run would choose now, which keeps of an earlier one only what packs the weights in its
/// checkpoint.
void use_budget(assembly::Assembly& assembly, int64_t factor, std::string& notes) {
  const recipe::Recipe& recipe = assembly.recipe();
  if (recipe.memory.budget == 0) return;
  std::optional<Error> damage;
  const std::optional<StoredPlan> stored = stored_plan(recipe, damage);
  if (const auto batch = planning::foretold_shape(assembly, planning::largest_of(recipe, factor), factor)) {
    const auto checkpoints =
        checkpoint::newest_first(checkpoint::roots_of(recipe.run.output, recipe.checkpoint.fallback));
    const planner::BudgetPlan plan = planning::plan_budget(assembly, *batch, planning::format_of_checkpoint(assembly, checkpoints));
    if (stored && planner::same_ways(stored->plan, plan))
      notes += "the plan of the run in " + recipe.run.output + " is proven\n";
    else if (stored)
      notes += "the run in " + recipe.run.output + " had another plan (" + stored->file +
               "); proven is the one that this recipe gets now\n";
    else if (damage)
      notes += std::string(damage->what()) + "; proven is the plan that this recipe gets now\n";
    return assembly.use_plan(plan);
  }
  if (damage) throw *damage;
  if (!stored || stored->plan.budget != recipe.memory.budget)
    throw Error(ExitCode::unavailable,
                "memory.budget: the model \"" + recipe.model.kind +
                    "\" does not declare the shapes of its inputs, so there is no plan before the "
                    "run made one; prove the recipe after the first steps of the run");
  notes += "the plan in " + stored->file + " is proven as it is: the model \"" + recipe.model.kind +
           "\" does not declare the shapes of its inputs, so none is made for the recipe of now\n";
  assembly.use_plan(plan_as_stored(assembly, *stored));
  try {
    assembly.memory_stack();
  } catch (const Error& error) {
    throw error.context(stored->file + " (delete it to have the run plan anew)");
  }
}

/// Throws Error (bad_recipe) when the two sides of the proof would be the same run.
void require_something_to_prove(assembly::Assembly& assembly) {
  const recipe::Recipe& recipe = assembly.recipe();
  if (assembly.plan() || recipe.placement.kind != "single" || recipe.optimizer.fused_backward) return;
  if (recipe.memory.components.empty())
    throw Error(ExitCode::bad_recipe,
                "there is nothing to prove: memory.strategies is empty, placement.kind is \"single\", and "
                "optimizer.fused_backward is off");
  if (const std::string idle = assembly.memory_stack().idle(); !idle.empty())
    throw Error(ExitCode::bad_recipe, "there is nothing to prove: " + idle);
}

/// What a cut model cannot tell: settings without effect on the whole one are errors, as they are in a run.
void require_effect_on_the_whole(assembly::Assembly& assembly, int64_t factor) {
  if (assembly.plan() || assembly.recipe().memory.components.empty()) return;
  const auto batch = planning::foretold_shape(assembly, planning::largest_of(assembly.recipe(), factor), factor);
  if (!batch) return;
  try {
    planning::strategy_rows(assembly, *batch);
  } catch (const Error& error) {
    if (error.code() != "NO_SHAPE_KERNEL") throw;  // a run tells after its first step
  }
}

/// " cpu", " cuda:0 cuda:1": each once, in order.
std::string devices(const PlacementPlan& plan) {
  std::vector<at::Device> all{plan.prologue};
  all.insert(all.end(), plan.blocks.begin(), plan.blocks.end());
  all.push_back(plan.epilogue);
  std::string text;
  for (const at::Device device : all)
    if (text.find(" " + device.str()) == std::string::npos) text += " " + device.str();
  return text;
}

class Prover {
 public:
  Prover(assembly::Assembly& assembly, bool random_weights, int64_t factor, std::string notes)
      : assembly_(assembly), random_weights_(random_weights), sizes_(largest_sizes(assembly, factor, notes)) {
    proof_.notes = std::move(notes);
    proof_.steps = kSteps;
  }

  /// Three steps as `use` says.
  prove::Trajectory run(assembly::CutUse use) {
    const recipe::Recipe& recipe = assembly_.recipe();
    planner::install_byte_counter();
    const planner::PeakMark held(assembly_.devices().front());
    use.random_weights = random_weights_;
    assembly::LoadedModel loaded = assembly_.load_cut_model(use);
    const auto objective = assembly_.objective();
    const int64_t micros = recipe.train.batch_size / recipe.train.micro_batch_size;
    const prove::SampleShapes shapes = prove::shapes_of(*loaded.model, *objective, sizes_);
    if (use.placed || proof_.model.empty()) describe(loaded, shapes);
    const auto seed = static_cast<uint64_t>(recipe.run.seed);
    prove::RandomBatches data(shapes, recipe.train.batch_size, micros, assembly_.devices().front(), seed);
    prove::Bench bench{*loaded.model, loaded.trained, *objective, loaded.memory, loaded.placement, data, seed};
    if (recipe.optimizer.fused_backward) {
      bench.max_grad_norm = 0;
      bench.fused_backward = use.placed;
    }
    const int64_t weights = held.held();
    prove::Trajectory trajectory = prove::train_steps(bench, kSteps);
    trajectory.peak_bytes += weights;
    return trajectory;
  }

  /// All strategies, placed as the recipe says, against those that pack weights on one device; when that fails, each
  /// alone, to name the one. What packs weights against what it says its weights are, and against those of the file.
  prove::Proof prove() {
    const Names all = assembly_.strategies(), packing = assembly_.packing_strategies();
    prove::Trajectory base;
    try {
      base = run({.strategies = packing, .packing_only = true});
    } catch (const PluginError& error) {  // what packs does not keep its promises: there is nothing to compare with
      proof_.lines.push_back({join(packing, "no strategy"), "", std::string("FAILED: ") + error.what()});
      return std::move(proof_);
    }
    require_substance(base);
    compare(all, packing, base);
    require_recompute();
    if (!proof_.passed() && all.size() + (split() ? 1 : 0) > 1) name_the_cause(all, packing, base);
    if (!packing.empty()) judge_packing(packing, base);
    return std::move(proof_);
  }

 private:
  void describe(assembly::LoadedModel& loaded, const prove::SampleShapes& shapes) {
    const recipe::Recipe& recipe = assembly_.recipe();
    proof_.model = loaded.model->describe();
    proof_.blocks.clear();
    for (const Block* block : loaded.model->blocks())
      proof_.blocks += (proof_.blocks.empty() ? "" : ", ") + block->info().name;
    proof_.inputs = shapes.text() + "; " + std::to_string(recipe.train.batch_size) + " samples in " +
                    std::to_string(recipe.train.batch_size / recipe.train.micro_batch_size) + " micro-batches; " +
                    recipe.model.dtype + " on" + devices(loaded.placement);
    int64_t count = 0;
    for (const Parameter* parameter : loaded.trained) count += parameter->value().numel();
    proof_.trained = (loaded.adapter ? loaded.adapter->describe() + " on " + std::to_string(loaded.adapted.size()) +
                                           " of the cut model's layers, "
                                     : std::string("all, ")) +
                     format_count(count) + " parameters";
    proof_.weight_bytes = std::max(proof_.weight_bytes, loaded.inventory.weight_bytes);
  }

  /// Nor do equal runs when the blocks that the strategies recompute are not among those of the cut model.
  void require_recompute() const {
    if (assembly_.plan() || !proof_.passed() || !assembly_.memory_stack().recomputes() || recomputed_) return;
    throw Error(
        ExitCode::bad_recipe,
        "nothing can be proven: the recipe's strategies recompute none of the blocks that the model is cut to (" +
            proof_.blocks + "); prove it with --set memory.<strategy>.blocks naming one of them");
  }

  /// Equal zeros prove nothing.
  static void require_substance(const prove::Trajectory& base) {
    for (const auto& [name, list] : base.gradients)
      for (const at::Tensor& gradient : list)
        if (gradient.count_nonzero().item<int64_t>() > 0) return;
    throw Error(ExitCode::bad_input,
                "every gradient of the run without strategies is zero: nothing can be proven with these weights (are "
                "they really there? with --random-weights the file's shapes are enough)");
  }

  /// Makes a comparison; what it throws becomes its result. `needed`: running out of memory ends the proof, since there
  /// is none without it.
  void add(prove::Comparison line, bool needed, const std::function<void(prove::Comparison&)>& make) {
    try {
      make(line);
    } catch (const c10::OutOfMemoryError&) {
      if (needed) throw;
      line.judged = false;
      line.result = "NOT COMPARED: there is no room for this run on the device";
    } catch (const c10::Error& error) {
      if (needed && says_out_of_memory(error.what_without_backtrace())) throw;
      line.result = std::string("FAILED: ") + error.what_without_backtrace();
    } catch (const std::exception& error) {
      line.result = std::string("FAILED: ") + error.what();
    }
    proof_.lines.push_back(std::move(line));
  }

  static void judge(prove::Comparison& line, const prove::Trajectory& trained, const prove::Trajectory& base) {
    const auto difference = prove::first_difference(trained, base);
    line.passed = !difference;
    if (difference) line.largest = difference->largest;
    line.result = difference ? "DIFFERS: " + difference->text()
                             : "bit-equal: " + std::to_string(trained.losses.size()) + " losses, " +
                                   std::to_string(trained.gradient_count()) + " gradients, " +
                                   std::to_string(trained.weights.size()) + " trained tensors";
  }

  void compare(const Names& strategies, const Names& packing, const prove::Trajectory& base) {
    const std::string placement = split() ? " on " + assembly_.recipe().placement.kind : "";
    const std::string against = packing.empty() ? "the plain run" : join(packing, "") + " alone";
    add({join(strategies, "no strategy") + placement, against}, /*needed=*/true, [&](prove::Comparison& line) {
      const prove::Trajectory trained = run({strategies, /*placed=*/true});
      line.peak_bytes = trained.peak_bytes;
      line.heavy = trained.heavy_operations();
      judge(line, trained, base);
      if (proof_.lines.empty()) proof_.recompute = trained.recompute, recomputed_ = trained.recomputed;
    });
  }

  [[nodiscard]] bool split() const { return assembly_.recipe().placement.kind != "single"; }

  void name_the_cause(const Names& all, const Names& packing, const prove::Trajectory& base) {
    if (split() && packing.size() < all.size()) compare(packing, packing, base);
    for (const std::string& name : all) {
      if (std::find(packing.begin(), packing.end(), name) != packing.end()) continue;
      Names alone = packing;
      alone.push_back(name);
      if (alone.size() < all.size()) compare(alone, packing, base);
    }
  }

  /// Backward and forward of packed weights are those of what they say they are, and that is near what the file holds.
  void judge_packing(const Names& packing, const prove::Trajectory& base) {
    const recipe::Tolerance tolerance = assembly_.tolerance_of(packing.front());
    add({join(packing, ""), "its weights held densely"}, /*needed=*/false, [&](prove::Comparison& line) {
      const prove::Trajectory dense = run({.strategies = packing, .expanded = true});
      judge(line, base, dense);
      if (line.passed || tolerance.rounding == 0) return;
      line.apart = prove::distance(base, dense);
      line.tolerance = tolerance.dense;
      line.passed = line.apart->within(tolerance.dense);
      line.result = (line.passed ? "within the declared rounding: " : "TOO FAR: ") + line.apart->text();
    });
    add({join(packing, ""), "the plain run"}, /*needed=*/false, [&](prove::Comparison& line) {
      const std::optional<prove::Trajectory> dense = dense_run(line);
      if (!dense) return;
      line.apart = prove::distance(base, *dense);
      line.tolerance = tolerance.dense;
      line.passed = line.apart->within(tolerance.dense);
      char text[160];
      std::snprintf(text, sizeof text, "loss %.6g, dense %.6g; %s, %s the declared %g", base.losses.front(),
                    dense->losses.front(), line.apart->text().c_str(), line.passed ? "within" : "MORE THAN",
                    tolerance.dense);
      line.result = text;
    });
  }

  /// The run with the weights of the file; nothing where these are packed themselves.
  std::optional<prove::Trajectory> dense_run(prove::Comparison& line) {
    try {
      return run({});
    } catch (const Error& error) {
      if (error.code() != "MODEL_SCALES") throw;
      line.judged = false;
      line.result = "NOT COMPARED: the file holds packed weights, there are no others";
      return std::nullopt;
    }
  }

  assembly::Assembly& assembly_;
  bool random_weights_;
  prove::Proof proof_;
  bool recomputed_ = false;  ///< a block of the cut model was
  prove::Sizes sizes_;
};

void print_table(const prove::Proof& proof) {
  std::printf("model    %s\n", proof.model.c_str());
  std::printf("cut to   %s (%s of weights)\n", proof.blocks.c_str(),
              format_bytes(static_cast<double>(proof.weight_bytes)).c_str());
  std::printf("inputs   %s; random numbers\n", proof.inputs.c_str());
  std::printf("trained  %s\nsteps    %lld\n", proof.trained.c_str(), static_cast<long long>(proof.steps));
  for (const auto& [type, r] : proof.recompute)
    std::printf("recompute of \"%s\": %lld of %lld heavy operations run again, %lld kept, %lld left out as dead\n",
                type.c_str(), static_cast<long long>(r.recomputed_calls), static_cast<long long>(r.forward_calls),
                static_cast<long long>(r.kept_calls), static_cast<long long>(r.elided_calls));
  std::size_t run = 3, against = 13;
  for (const prove::Comparison& line : proof.lines) {
    run = std::max(run, line.run.size());
    against = std::max(against, line.against.size());
  }
  std::printf("\n%-*s  %-*s  result\n", static_cast<int>(run), "run", static_cast<int>(against), "compared with");
  for (const prove::Comparison& line : proof.lines) {
    std::printf("%-*s  %-*s  %s\n", static_cast<int>(run), line.run.c_str(), static_cast<int>(against),
                line.against.c_str(), line.result.c_str());
    if (!line.heavy.empty())
      std::printf("%-*s  peak %s, %s (the first step's tests are in)\n", static_cast<int>(run), "",
                  format_bytes(static_cast<double>(line.peak_bytes)).c_str(), line.heavy.c_str());
  }
  std::printf("\n%s%s (%s)\n", proof.notes.c_str(),
              proof.passed() ? "PROVEN: the strategies train what the run without them trains"
                             : "NOT PROVEN: the strategies change what is trained",
              proof.verdict().c_str());
}

/// Beside run.json; a folder that cannot be written is no reason to lose the proof.
void store(prove::Proof& proof, const recipe::Recipe& recipe, const std::map<std::string, std::string>& subject) {
  try {
    proof.notes += "stored in " + prove::store_proof(recipe.run.output, proof, subject).string() + "\n";
  } catch (const std::exception& error) {
    log_warning(std::string("the proof is not stored: ") + error.what());
  }
}

/// The note in the user's folder follows the verdict, but for plugins that failed a check of more than this recipe.
void note_attestation(prove::Proof& proof, const identity::Strangers& strangers, const std::string& recipe) {
  if (strangers.empty()) return;
  if (!proof.passed()) return identity::withdraw(strangers);
  if (!proof.complete()) return;
  if (const Names failed = identity::failed_checks(strangers); !failed.empty())
    proof.notes += "not attested: `trainer plugins check` found wrong: " + join(failed, "") +
                   ", in more combinations than this recipe's\n";
  else
    proof.notes +=
        "attested in " + identity::attest(strangers, "`trainer prove " + recipe + "`: " + proof.inputs).string() + "\n";
}

}  // namespace

int command_prove(const assembly::Request& request) {
  assembly::Assembly assembly(request, assembly::Assembly::Use::prove);
  const recipe::Recipe& recipe = assembly.recipe();
  std::string notes;
  const int64_t factor = latent_factor(assembly, notes);
  use_budget(assembly, factor, notes);
  if (assembly.plan() && !request.json) std::printf("%s\n", describe(*assembly.plan()).c_str());
  require_something_to_prove(assembly);
  require_effect_on_the_whole(assembly, factor);
  prove::Proof proof = Prover(assembly, request.random_weights, factor, notes).prove();
  if (request.random_weights) proof.notes += "random weights in the shapes of the file\n";
  const identity::Strangers strangers = identity::strangers_of(recipe, assembly.loader(), assembly.plan());
  note_attestation(proof, strangers, request.recipe);
  store(proof, recipe, prove::proof_subject(recipe, strangers, assembly.plan()));
  if (request.json)
    std::printf("%s\n", printable_json(to_json(proof)).c_str());
  else
    print_table(proof);
  return static_cast<int>(proof.passed() ? ExitCode::done : ExitCode::plugin_rejected);
}

}  // namespace trainer::engine
