#include <assembly/components.hpp>
#include <assembly/lora_families.hpp>
#include <recipe/default_options.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

#include <algorithm>

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

KnownAdapter read_as(plugin::Loader& loader, const weights::TensorFile& file, const std::string& model) {
  LoraFamily family = family_of(loader, model);
  adapter::ReadAdapter read = read_known(loader.found(), file, family);
  return {model, std::move(family), std::move(read)};
}

/// The kind that our metadata names must be there: its tensors alone do not say what they compute.
void require_offered(const weights::TensorFile& file, const std::vector<adapter::AdapterKind>& kinds) {
  const std::string stated = adapter::stated_kind(file);
  std::vector<std::string> names;
  for (const adapter::AdapterKind& kind : kinds) names.push_back(kind.name);
  if (stated.empty() || std::find(names.begin(), names.end(), stated) != names.end()) return;
  throw Error(ExitCode::bad_input,
              file.path().string() + ": made by the adapter " + quote_name(stated) + ", which no plugin here offers" +
                  did_you_mean(stated, names) + "; put the folder of its plugin on TRAINER_PLUGIN_PATH",
              "LORA_KEYS");
}

}  // namespace

std::vector<adapter::AdapterKind> adapter_kinds(const plugin::Found& found) {
  std::vector<adapter::AdapterKind> kinds;
  for (const bool own : {true, false})
    for (const plugin::Manifest& manifest : found.manifests)
      if (manifest.schema.kind == "adapter" && plugin::is_own(manifest) == own)
        kinds.push_back({manifest.schema.name, manifest.schema.tensors});
  return kinds;
}

adapter::ReadAdapter read_known(const plugin::Found& found, const weights::TensorFile& file, const LoraFamily& family) {
  const std::vector<adapter::AdapterKind> kinds = adapter_kinds(found);
  require_offered(file, kinds);
  return adapter::read_adapter(file, family, adapter::kind_of(file, kinds));
}

adapter::ReadAdapter read_for(const plugin::Found& found, const weights::TensorFile& file, const LoraFamily& family,
                              const std::string& kind) {
  const std::vector<adapter::AdapterKind> kinds = adapter_kinds(found);
  const auto wanted =
      std::find_if(kinds.begin(), kinds.end(), [&](const adapter::AdapterKind& one) { return one.name == kind; });
  if (wanted == kinds.end()) return read_known(found, file, family);
  if (wanted->tensors.empty())
    throw Error(ExitCode::bad_recipe,
                "adapter.path: the adapter " + quote_name(kind) + " reads no files: its manifest lists no \"tensors\"");
  const adapter::AdapterKind* other = adapter::kind_of(file, kinds);
  if (other != nullptr && other != &*wanted && adapter::kind_of(file, {&*wanted, 1}) == nullptr)
    throw Error(ExitCode::bad_recipe, "adapter.path: " + file.path().string() + " is a file of the adapter " +
                                          quote_name(other->name) + ", the recipe's is " + quote_name(kind) +
                                          "; set adapter.kind = \"" + other->name + "\", or take another file");
  return adapter::read_adapter(file, family, &*wanted);
}

std::unique_ptr<Adapter> adapter_for(plugin::Loader& loader, const adapter::ReadAdapter& read) {
  if (read.kind.empty())
    throw Error(ExitCode::bad_input,
                "no adapter plugin reads LoRA matrices: the folder of the plugin \"lora\" is not "
                "on the search path");
  loader.require("adapter", read.kind);
  const Options options =
      recipe::default_options(plugin::schema_of(loader.found(), "adapter", read.kind), /*from_file=*/true);
  return plugin::guard(read.kind, "create",
                       [&] { return loader.registry().adapters.find(read.kind)->second.create(options); });
}

LoraFamily family_of(plugin::Loader& loader, const std::string& model) { return lora_family(component(loader, model)); }

std::optional<LoraFamily> family_of_names(plugin::Loader& loader, const weights::TensorFile& file) {
  const std::vector<adapter::AdapterKind> kinds = adapter_kinds(loader.found());
  for (const plugin::Manifest& manifest : loader.found().manifests) try {
      if (!has_family(loader, manifest)) continue;
      LoraFamily family = family_of(loader, manifest.schema.name);
      if (adapter::knows_names(family, file, kinds)) return family;
    } catch (const Error&) {  // a plugin that cannot be loaded knows nothing
    }
  return {};
}

KnownAdapter open_adapter(plugin::Loader& loader, const weights::TensorFile& file, const std::string& model) {
  if (!model.empty()) return read_as(loader, file, model);
  std::vector<Error> refusals;
  for (const plugin::Manifest& manifest : loader.found().manifests) try {
      if (has_family(loader, manifest)) return read_as(loader, file, manifest.schema.name);
    } catch (const Error& error) {
      refusals.push_back(error);
    }
  if (const auto family = family_of_names(loader, file))
    read_known(loader.found(), file, *family);  // throws what is wrong
  if (refusals.size() == 1) throw refusals.front();
  std::string text = file.path().string() + ": no model plugin knows this LoRA";
  for (const Error& refusal : refusals) text += std::string("\n") + refusal.what();
  throw Error(ExitCode::bad_input, text, "LORA_KEYS");
}

}  // namespace trainer::assembly
