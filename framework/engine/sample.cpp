/// @file `trainer sample RECIPE`: pictures of the recipe's model, with or without a LoRA.
#include <assembly/lora_families.hpp>
#include <base/files.hpp>
#include <base/printable.hpp>
#include <engine/commands.hpp>
#include <nlohmann/json.hpp>
#include <preparation/cache_phase.hpp>
#include <run/export.hpp>
#include <sampling/samples.hpp>

#include <cstdio>
#include <optional>

namespace trainer::engine {
namespace {

/// Pictures that nobody named replace none.
std::string free_name() {
  std::string name = "samples.png";
  for (int number = 2; std::filesystem::exists(name); ++number) name = "samples-" + std::to_string(number) + ".png";
  return name;
}

/// An adapter of any kind whose layers are the model's.
adapter::ReadAdapter read_fitting(assembly::Assembly& assembly, const std::string& path) {
  const assembly::LoadedModel outline = assembly.models.load(assembly.strategies.stack(), {assembly::Weights::none});
  const weights::TensorFile file(path, {weights::Profile::compat, weights::ReadMode::copy});
  adapter::ReadAdapter read = assembly::read_known(assembly.components.plugins().found(), file, outline.lora_family);
  adapter::check_layers(path, read, outline.inventory.linears);
  return read;
}

}  // namespace

int command_sample(const SampleRequest& request) {
  if (!request.output.empty()) require_replaceable(request.output);  // before the hours of drawing
  plugin::Loader plugins(request.plugins);
  assembly::Assembly assembly(recipe_of(request, plugins), plugins, request.libraries);
  metrics::Console console(preparation::console_options(request.quiet));
  if (!assembly.recipe.pictures())
    throw Error(ExitCode::bad_recipe, "the objective \"" + assembly.recipe.objective.kind +
                                          "\" trains on texts alone: there is nothing to draw");
  const std::vector<std::string>& prompts = request.prompts.empty() ? assembly.recipe.sample.prompts : request.prompts;
  if (prompts.empty())
    throw Error(ExitCode::usage, "nothing to draw: give --prompt TEXT, or sample.prompts in the recipe");
  std::optional<adapter::ReadAdapter> read;  // before captions are encoded: a fault of the file is reported at once
  if (!request.lora.empty()) read = read_fitting(assembly, request.lora);
  const sampling::SamplePlan plan = preparation::prepare_samples(assembly, prompts, console);
  const auto placement = assembly.components.placement();
  assembly::LoadedModel loaded =
      assembly.models.load(assembly.strategies.stack(), {.placement = placement.get(), .trained = false});
  const std::unique_ptr<Adapter> adapter = read ? assembly::adapter_for(plugins, *read) : nullptr;
  if (adapter) run::apply_adapter(loaded, *adapter, *read, assembly::dtype_of(assembly.recipe.model.dtype));
  const sampling::Pictures pictures =
      sampling::draw(loaded, plan, [&] { return assembly.encoders.autoencoder(); },
                     {[&](int64_t done, int64_t total) { console.phase(done, total, "samples"); }, {}});
  const auto file = sampling::write_grid(request.output.empty() ? free_name() : request.output, plan,
                                         {{request.lora.empty() ? "model" : "LoRA", pictures}});
  if (request.json)
    std::printf("%s\n", printable_json(nlohmann::ordered_json{{"samples", file.string()}}).c_str());
  else
    std::printf("%s\n", file.c_str());
  return static_cast<int>(ExitCode::done);
}

}  // namespace trainer::engine
