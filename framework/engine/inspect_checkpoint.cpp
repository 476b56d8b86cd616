// What a checkpoint is: its tensors, and what the recipe that it stores says of them.
#include <assembly/lora_families.hpp>
#include <checkpoint/store.hpp>
#include <checkpoint/train_state.hpp>
#include <engine/inspect.hpp>
#include <identity/same_run.hpp>
#include <trainer/sdk/error.hpp>
#include <weights/convert.hpp>

namespace trainer::engine {
namespace {

constexpr std::string_view kTrained = "param.";

/// What is trained, of which model.
void add_training(Json& json, const recipe::Recipe& recipe, plugin::Loader& loader) {
  json["model"] = recipe.model.kind;
  json["trains"] = recipe.adapter ? recipe.adapter->kind : "all parameters";
  if (!recipe.adapter) return;
  for (const char* key : {"rank", "alpha"})
    if (recipe.adapter->options.has(key)) json[key] = recipe.adapter->options.get<double>(key);
  json["family"] = assembly::family_of(loader, recipe.model.kind).name;
}

void add_tensors(Json& json, const NamedTensors& tensors) {
  Json names = Json::array(), bad = Json::array();
  int64_t bytes = 0, trained = 0;
  std::map<std::string, int64_t> dtypes;
  for (const auto& [name, tensor] : tensors) {
    const std::string dtype = dtype_text(tensor.scalar_type());
    names.push_back(name + "  " + dtype + " " + shape_text(tensor.sizes().vec()));
    bytes += static_cast<int64_t>(tensor.nbytes());
    dtypes[dtype] += tensor.numel();
    if (name.starts_with(kTrained)) trained += tensor.numel();
    if (!weights::all_finite(tensor)) bad.push_back(name);
  }
  json["trained"] = trained;
  json["tensors"] = tensors.size();
  for (const auto& [dtype, count] : dtypes) json["dtypes"][dtype] = count;
  json["bytes"] = bytes;
  json["finite"] = bad.empty();
  if (!bad.empty()) json["not_finite"] = std::move(bad);
  json["names"] = std::move(names);
}

}  // namespace

Json inspect_checkpoint(const std::filesystem::path& folder, plugin::Loader& loader) {
  const checkpoint::Loaded loaded = checkpoint::load(folder);
  Json json{{"what", "checkpoint"}, {"step", loaded.manifest.step}, {"run_id", loaded.manifest.run_id}};
  json["whole"] = true;
  json["read_by"] = "trainer run RECIPE --resume " + folder.string();
  try {
    add_training(json, identity::parse_recipe(checkpoint::read_progress(loaded).recipe, loader.found()), loader);
  } catch (const Error& error) {  // of a plugin that is not here, or edited
    json["problem"] = error.what();
  }
  json["fingerprints"] = loaded.manifest.fingerprints;
  add_tensors(json, loaded.content.tensors);
  return json;
}

}  // namespace trainer::engine
