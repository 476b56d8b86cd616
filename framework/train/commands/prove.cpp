/// @file `trainer prove RECIPE`: the recipe's memory strategies against the run without them, on a model cut short.
#include <c10/util/Exception.h>
#include <base/units.hpp>
#include <nlohmann/json.hpp>
#include <train/artifacts/attestation.hpp>
#include <train/assembly/assemble.hpp>
#include <train/commands/commands.hpp>
#include <train/planning/recipe_budget.hpp>
#include <train/prove/trajectory.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

namespace trainer::train {
namespace {

using prove::Trajectory;
using Names = std::vector<std::string>;

constexpr int64_t kSteps = 3;
constexpr int64_t kUsualFactor = 16;  // pixels per latent cell of the FLUX.2 family

/// One comparison of the table.
struct Line {
  std::string run, against, result;
  bool passed = false;
};

/// What was proven and how; filled in as the runs go.
struct Proof {
  std::string model, blocks, inputs, trained, notes;
  int64_t weight_bytes = 0;
  std::map<std::string, RecomputeReport> recompute;
  std::vector<Line> lines;
  [[nodiscard]] bool passed() const {
    return std::all_of(lines.begin(), lines.end(), [](const Line& line) { return line.passed; });
  }
};

std::string join(const Names& names, const std::string& none) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " + ") + name;
  return text.empty() ? none : text;
}

/// Sizes of the largest sample that the recipe's data can bring.
prove::Sizes largest_sizes(Assembly& assembly, std::string& notes) {
  const recipe::Recipe& recipe = assembly.recipe();
  int64_t factor = kUsualFactor;
  if (std::filesystem::exists(recipe.autoencoder.path))
    factor = assembly.autoencoder()->spatial_factor();
  else
    notes += "no autoencoder at hand: 16 pixels per latent cell are taken for granted\n";
  const data::Bucket largest = largest_of(recipe, factor);
  const Options& text = recipe.text_encoder.options;
  constexpr int64_t kUsualTokens = 512;
  return {largest.height / factor, largest.width / factor,
          text.has("max_tokens") ? text.get<int64_t>("max_tokens") : kUsualTokens};
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
  Prover(Assembly& assembly, bool random_weights)
      : assembly_(assembly), random_weights_(random_weights), sizes_(largest_sizes(assembly, proof_.notes)) {}

  /// Three steps with these strategies of the recipe, on its placement or on the first device.
  Trajectory run(const Names& strategies, bool placed) {
    const recipe::Recipe& recipe = assembly_.recipe();
    LoadedModel loaded = assembly_.load_cut_model(strategies, placed, random_weights_);
    const auto objective = assembly_.objective();
    const int64_t micros = recipe.train.batch_size / recipe.train.micro_batch_size;
    const prove::SampleShapes shapes = prove::shapes_of(*loaded.model, *objective, sizes_);
    describe(loaded, shapes);
    const auto seed = static_cast<uint64_t>(recipe.run.seed);
    prove::RandomBatches data(shapes, recipe.train.batch_size, micros, assembly_.devices().front(), seed);
    prove::Bench bench{*loaded.model, loaded.trained, *objective, loaded.memory, loaded.placement, data, seed};
    if (recipe.optimizer.fused_backward) {
      bench.max_grad_norm = 0;
      bench.fused_backward = placed;
    }
    return prove::train_steps(bench, kSteps);
  }

  /// All strategies, placed as the recipe says, against those that pack weights on one device; when that fails, each
  /// alone, to name the one.
  Proof prove() {
    const Names all = assembly_.recipe().memory.strategies, packing = assembly_.packing_strategies();
    const Trajectory base = run(packing, false);
    require_substance(base);
    compare(all, packing, base);
    if (!proof_.passed() && all.size() + (split() ? 1 : 0) > 1) name_the_cause(all, packing, base);
    if (!packing.empty()) show_packing(packing, base);
    return std::move(proof_);
  }

 private:
  void describe(LoadedModel& loaded, const prove::SampleShapes& shapes) {
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

  /// Equal zeros prove nothing.
  static void require_substance(const Trajectory& base) {
    for (const auto& [name, list] : base.gradients)
      for (const at::Tensor& gradient : list)
        if (gradient.count_nonzero().item<int64_t>() > 0) return;
    throw Error(ExitCode::bad_input,
                "every gradient of the run without strategies is zero: nothing can be proven with these weights (are "
                "they really there? with --random-weights the file's shapes are enough)");
  }

  void compare(const Names& strategies, const Names& packing, const Trajectory& base) {
    const std::string placement = split() ? " on " + assembly_.recipe().placement.kind : "";
    Line line{join(strategies, "no strategy") + placement,
              packing.empty() ? "the plain run" : join(packing, "") + " alone", ""};
    try {
      const Trajectory trained = run(strategies, true);
      const auto difference = prove::first_difference(trained, base);
      line.passed = !difference;
      line.result = difference ? "DIFFERS: " + difference->text()
                               : "bit-equal: " + std::to_string(trained.losses.size()) + " losses, " +
                                     std::to_string(trained.gradient_count()) + " gradients, " +
                                     std::to_string(trained.weights.size()) + " trained tensors";
      if (proof_.lines.empty()) proof_.recompute = trained.recompute;
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      line.result = std::string("FAILED: ") + error.what_without_backtrace();
    } catch (const std::exception& error) {
      line.result = std::string("FAILED: ") + error.what();
    }
    proof_.lines.push_back(std::move(line));
  }

  [[nodiscard]] bool split() const { return assembly_.recipe().placement.kind != "single"; }

  void name_the_cause(const Names& all, const Names& packing, const Trajectory& base) {
    if (split() && packing.size() < all.size()) compare(packing, packing, base);
    for (const std::string& name : all) {
      if (std::find(packing.begin(), packing.end(), name) != packing.end()) continue;
      Names alone = packing;
      alone.push_back(name);
      if (alone.size() < all.size()) compare(alone, packing, base);
    }
  }

  void show_packing(const Names& packing, const Trajectory& base) {
    const Trajectory dense = run({}, false);
    char text[160];
    std::snprintf(text, sizeof text, "loss %.6g, dense %.6g (%.2g apart): packed weights compute something else",
                  base.losses.front(), dense.losses.front(), std::abs(base.losses.front() / dense.losses.front() - 1));
    proof_.lines.push_back({join(packing, ""), "the plain run", text, std::isfinite(base.losses.front())});
  }

  Assembly& assembly_;
  bool random_weights_;
  Proof proof_;
  prove::Sizes sizes_;
};

void print_json(const Proof& proof) {
  nlohmann::ordered_json json{{"proven", proof.passed()},
                              {"model", proof.model},
                              {"blocks", proof.blocks},
                              {"inputs", proof.inputs},
                              {"trained", proof.trained},
                              {"steps", kSteps},
                              {"weight_bytes", proof.weight_bytes},
                              {"notes", proof.notes}};
  json["comparisons"] = nlohmann::ordered_json::array();
  for (const Line& line : proof.lines)
    json["comparisons"].push_back(
        {{"run", line.run}, {"against", line.against}, {"passed", line.passed}, {"result", line.result}});
  std::printf("%s\n", json.dump(2).c_str());
}

void print_table(const Proof& proof) {
  std::printf("model    %s\n", proof.model.c_str());
  std::printf("cut to   %s (%s of weights)\n", proof.blocks.c_str(),
              format_bytes(static_cast<double>(proof.weight_bytes)).c_str());
  std::printf("inputs   %s; random numbers\n", proof.inputs.c_str());
  std::printf("trained  %s\nsteps    %lld\n", proof.trained.c_str(), static_cast<long long>(kSteps));
  for (const auto& [type, r] : proof.recompute)
    std::printf("recompute of \"%s\": %lld of %lld heavy operations run again, %lld kept, %lld left out as dead\n",
                type.c_str(), static_cast<long long>(r.recomputed_calls), static_cast<long long>(r.forward_calls),
                static_cast<long long>(r.kept_calls), static_cast<long long>(r.elided_calls));
  std::size_t run = 3, against = 13;
  for (const Line& line : proof.lines) {
    run = std::max(run, line.run.size());
    against = std::max(against, line.against.size());
  }
  std::printf("\n%-*s  %-*s  result\n", static_cast<int>(run), "run", static_cast<int>(against), "compared with");
  for (const Line& line : proof.lines)
    std::printf("%-*s  %-*s  %s\n", static_cast<int>(run), line.run.c_str(), static_cast<int>(against),
                line.against.c_str(), line.result.c_str());
  std::printf("\n%s%s\n", proof.notes.c_str(),
              proof.passed() ? "PROVEN: the strategies train what the run without them trains."
                             : "NOT PROVEN: the strategies change what is trained.");
}

}  // namespace

int command_prove(const Request& request) {
  Assembly assembly(request, Assembly::Use::prove);
  if (assembly.recipe().memory.budget > 0)
    throw Error(
        ExitCode::bad_recipe,
        "memory.budget: `prove` compares the strategies that a recipe names; put what `trainer plan` chose into "
        "memory.strategies to prove it");
  Proof proof = Prover(assembly, request.random_weights).prove();
  const Strangers strangers = strangers_of(assembly.recipe(), assembly.loader());
  if (!strangers.empty() && proof.passed())
    proof.notes +=
        "attested in " + attest(strangers, "`trainer prove " + request.recipe + "`: " + proof.inputs).string() + "\n";
  if (!strangers.empty() && !proof.passed()) withdraw(strangers);
  if (request.random_weights) proof.notes += "random weights in the shapes of the file\n";
  request.json ? print_json(proof) : print_table(proof);
  return static_cast<int>(proof.passed() ? ExitCode::done : ExitCode::plugin_rejected);
}

}  // namespace trainer::train
