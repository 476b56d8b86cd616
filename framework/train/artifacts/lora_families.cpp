#include <train/artifacts/lora_families.hpp>
#include <train/assembly/assemble.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::train {
namespace {

const ModelComponent& component(plugin::Loader& loader, const std::string& model) {
  loader.require("model", model);
  return loader.registry().models.find(model)->second;
}

KnownLora read_as(plugin::Loader& loader, const weights::TensorFile& file, const std::string& model) {
  LoraFamily family = lora_family(component(loader, model));
  adapter::LoraFile lora = adapter::read_lora(file, family);
  return {model, std::move(family), std::move(lora)};
}

}  // namespace

KnownLora open_lora(plugin::Loader& loader, const weights::TensorFile& file, const std::string& model) {
  if (!model.empty()) return read_as(loader, file, model);
  std::vector<Error> refusals;
  for (const plugin::Manifest& manifest : loader.found().manifests) {
    if (manifest.schema.kind != "model") continue;
    try {
      // A component without a family would take any names for its own.
      if (component(loader, manifest.schema.name).lora_family == nullptr) continue;
      return read_as(loader, file, manifest.schema.name);
    } catch (const Error& error) {
      if (error.code() == "LORA_NONFINITE") throw;  // its names are known
      refusals.push_back(error);
    }
  }
  if (refusals.size() == 1) throw refusals.front();
  std::string text = file.path().string() + ": no model plugin knows this LoRA";
  for (const Error& refusal : refusals) text += std::string("\n") + refusal.what();
  throw Error(ExitCode::bad_input, text, "LORA_KEYS");
}

}  // namespace trainer::train
