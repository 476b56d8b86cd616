#include <assembly/components.hpp>
#include <assembly/lora_families.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::assembly {
namespace {

const ModelComponent& component(plugin::Loader& loader, const std::string& model) {
  loader.require("model", model);
  return loader.registry().models.find(model)->second;
}

/// A component without a family would take any names for its own.
bool has_family(plugin::Loader& loader, const plugin::Manifest& manifest) {
  return manifest.schema.kind == "model" && component(loader, manifest.schema.name).lora_family != nullptr;
}

KnownLora read_as(plugin::Loader& loader, const weights::TensorFile& file, const std::string& model) {
  LoraFamily family = family_of(loader, model);
  adapter::LoraFile lora = adapter::read_lora(file, family);
  return {model, std::move(family), std::move(lora)};
}

}  // namespace

LoraFamily family_of(plugin::Loader& loader, const std::string& model) { return lora_family(component(loader, model)); }

std::optional<LoraFamily> family_of_names(plugin::Loader& loader, const weights::TensorFile& file) {
  for (const plugin::Manifest& manifest : loader.found().manifests) try {
      if (!has_family(loader, manifest)) continue;
      LoraFamily family = family_of(loader, manifest.schema.name);
      if (adapter::knows_names(family, file)) return family;
    } catch (const Error&) {  // a plugin that cannot be loaded knows nothing
    }
  return {};
}

KnownLora open_lora(plugin::Loader& loader, const weights::TensorFile& file, const std::string& model) {
  if (!model.empty()) return read_as(loader, file, model);
  std::vector<Error> refusals;
  for (const plugin::Manifest& manifest : loader.found().manifests) try {
      if (has_family(loader, manifest)) return read_as(loader, file, manifest.schema.name);
    } catch (const Error& error) {
      refusals.push_back(error);
    }
  if (const auto family = family_of_names(loader, file)) adapter::read_lora(file, *family);  // throws what is wrong
  if (refusals.size() == 1) throw refusals.front();
  std::string text = file.path().string() + ": no model plugin knows this LoRA";
  for (const Error& refusal : refusals) text += std::string("\n") + refusal.what();
  throw Error(ExitCode::bad_input, text, "LORA_KEYS");
}

}  // namespace trainer::assembly
