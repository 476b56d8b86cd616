/// @file `trainer sample RECIPE`: pictures of the recipe's model, with or without a LoRA.
#include <base/files.hpp>
#include <base/printable.hpp>
#include <nlohmann/json.hpp>
#include <train/artifacts/export.hpp>
#include <train/artifacts/lora_families.hpp>
#include <train/cache_phase.hpp>
#include <train/commands/commands.hpp>
#include <train/samples.hpp>

#include <cstdio>
#include <optional>

namespace trainer::train {
namespace {

/// Pictures that nobody named replace none.
std::string free_name() {
  std::string name = "samples.png";
  for (int number = 2; std::filesystem::exists(name); ++number) name = "samples-" + std::to_string(number) + ".png";
  return name;
}

/// An adapter of any kind whose layers are the model's.
adapter::ReadAdapter read_fitting(Assembly& assembly, const std::string& path) {
  const LoadedModel outline = assembly.load_model(ModelUse::outline);
  const weights::TensorFile file(path, {weights::Profile::compat, weights::ReadMode::copy});
  adapter::ReadAdapter read = read_known(assembly.loader().found(), file, outline.lora_family);
  adapter::check_layers(path, read, outline.inventory.linears);
  return read;
}

}  // namespace

int command_sample(const Request& request) {
  if (!request.output.empty()) require_replaceable(request.output);  // before the hours of drawing
  Assembly assembly(request);
  metrics::Console console(console_options(request));
  if (!assembly.recipe().pictures())
    throw Error(ExitCode::bad_recipe, "the objective \"" + assembly.recipe().objective.kind +
                                          "\" trains on texts alone: there is nothing to draw");
  const std::vector<std::string>& prompts =
      request.prompts.empty() ? assembly.recipe().sample.prompts : request.prompts;
  if (prompts.empty())
    throw Error(ExitCode::usage, "nothing to draw: give --prompt TEXT, or sample.prompts in the recipe");
  std::optional<adapter::ReadAdapter> read;  // before captions are encoded: a fault of the file is reported at once
  if (!request.lora.empty()) read = read_fitting(assembly, request.lora);
  const SamplePlan plan = prepare_samples(assembly, prompts, console);
  LoadedModel loaded = assembly.load_model(ModelUse::sample);
  const std::unique_ptr<Adapter> adapter = read ? adapter_for(assembly.loader(), *read) : nullptr;
  if (adapter) apply_adapter(loaded, *adapter, *read, dtype_of(assembly.recipe().model.dtype));
  const Pictures pictures = draw(loaded, plan, [&] { return assembly.autoencoder(); },
                                 {[&](int64_t done, int64_t total) { console.phase(done, total, "samples"); }, {}});
  const auto file = write_grid(request.output.empty() ? free_name() : request.output, plan,
                               {{request.lora.empty() ? "model" : "LoRA", pictures}});
  if (request.json)
    std::printf("%s\n", printable_json(nlohmann::ordered_json{{"samples", file.string()}}).c_str());
  else
    std::printf("%s\n", file.c_str());
  return static_cast<int>(ExitCode::done);
}

}  // namespace trainer::train
