/// @file `trainer prove RECIPE`: the recipe's memory strategies against the run without them, on a model cut short.
#include <base/log.hpp>
#include <base/printable.hpp>
#include <base/units.hpp>
#include <engine/commands.hpp>
#include <identity/attestation.hpp>
#include <nlohmann/json.hpp>
#include <planning/conditioning.hpp>
#include <planning/recipe_budget.hpp>
#include <planning/stored_plan.hpp>
#include <prove/recipe_proof.hpp>

#include <algorithm>
#include <cstdio>

namespace trainer::engine {
namespace {

int64_t latent_factor(assembly::Assembly& assembly, std::string& notes) {
  const int64_t factor = planning::foretold_factor(assembly, notes);
  if (!notes.empty()) notes += "\n";
  return factor;
}

/// Sizes of the largest sample that the recipe's data can bring.
prove::Sizes largest_sizes(assembly::Assembly& assembly, int64_t factor, std::string& notes) {
  const recipe::Recipe& recipe = assembly.recipe;
  const data::Bucket largest = planning::largest_of(recipe, factor);
  const assembly::LoadedModel outline = assembly.models.load(assembly.strategies.stack(), {assembly::Weights::none});
  const auto conditioning = planning::foretell_conditioning(assembly, *outline.model, *assembly.components.objective());
  if (conditioning && !conditioning->note.empty()) notes += conditioning->note + "\n";
  return {largest.height / factor, largest.width / factor, conditioning ? conditioning->tokens() : 0};
}

/// Throws Error (bad_recipe) when the two sides of the proof would be the same run.
void require_something_to_prove(assembly::Assembly& assembly) {
  const recipe::Recipe& recipe = assembly.recipe;
  if (assembly.strategies.plan() || recipe.placement.kind != "single" || recipe.optimizer.fused_backward) return;
  if (recipe.memory.components.empty())
    throw Error(ExitCode::bad_recipe,
                "there is nothing to prove: memory.strategies is empty, placement.kind is \"single\", and "
                "optimizer.fused_backward is off");
  if (const std::string idle = assembly.strategies.stack().idle(); !idle.empty())
    throw Error(ExitCode::bad_recipe, "there is nothing to prove: " + idle);
}

/// What a cut model cannot tell: settings without effect on the whole one are errors, as they are in a run.
void require_effect_on_the_whole(assembly::Assembly& assembly, int64_t factor) {
  if (assembly.strategies.plan() || assembly.recipe.memory.components.empty()) return;
  const auto batch = planning::foretold_shape(assembly, planning::largest_of(assembly.recipe, factor), factor);
  if (!batch) return;
  try {
    planning::strategy_rows(assembly, *batch);
  } catch (const Error& error) {
    if (error.code() != "NO_SHAPE_KERNEL") throw;  // a run tells after its first step
  }
}

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
  for (const prove::Row& line : proof.lines) {
    run = std::max(run, line.subset.size());
    against = std::max(against, line.against.size());
  }
  std::printf("\n%-*s  %-*s  result\n", static_cast<int>(run), "run", static_cast<int>(against), "compared with");
  for (const prove::Row& line : proof.lines) {
    std::printf("%-*s  %-*s  %s\n", static_cast<int>(run), line.subset.c_str(), static_cast<int>(against),
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
  if (const std::vector<std::string> failed = identity::failed_checks(strangers); !failed.empty())
    proof.notes += "not attested: `trainer plugins check` found wrong: " + prove::join(failed) +
                   ", in more combinations than this recipe's\n";
  else
    proof.notes +=
        "attested in " + identity::attest(strangers, "`trainer prove " + recipe + "`: " + proof.inputs).string() + "\n";
}

}  // namespace

int command_prove(const ProveRequest& request) {
  plugin::Loader plugins(request.plugins);
  assembly::Assembly assembly(recipe_of(request, plugins), plugins, request.libraries);
  const recipe::Recipe& recipe = assembly.recipe;
  std::string notes;
  const int64_t factor = latent_factor(assembly, notes);
  planning::use_budget_of_run(assembly, factor, notes);
  if (assembly.strategies.plan() && !request.json) std::printf("%s\n", describe(*assembly.strategies.plan()).c_str());
  require_something_to_prove(assembly);
  require_effect_on_the_whole(assembly, factor);
  const prove::Sizes sizes = largest_sizes(assembly, factor, notes);
  prove::Proof proof = prove::prove_recipe(assembly, sizes, request.random_weights);
  proof.notes = std::move(notes);
  if (request.random_weights) proof.notes += "random weights in the shapes of the file\n";
  const identity::Strangers strangers =
      identity::strangers_of(recipe, assembly.components.plugins(), assembly.strategies.plan());
  note_attestation(proof, strangers, recipe.file);
  store(proof, recipe, identity::proof_subject(recipe, strangers, assembly.strategies.plan()));
  if (request.json)
    std::printf("%s\n", printable_json(to_json(proof)).c_str());
  else
    print_table(proof);
  return static_cast<int>(proof.passed() ? ExitCode::done : ExitCode::plugin_rejected);
}

}  // namespace trainer::engine
