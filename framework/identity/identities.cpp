#include <torch/version.h>
#include <assembly/device.hpp>
#include <base/files.hpp>
#include <base/hash.hpp>
#include <data/holdout.hpp>
#include <identity/identities.hpp>
#include <recipe/load.hpp>
#include <recipe/options_identity.hpp>
#include <weights/model_files.hpp>

#include <filesystem>

namespace trainer::identity {
namespace {

constexpr std::size_t kConfigLimit = std::size_t{16} << 20;

/// The text beside a LoRA that states its scale (peft's); empty for one that says all itself.
std::string text_beside(const weights::ModelFiles& lora) {
  bool peft = false;
  for (const std::string& name : lora.names()) peft = peft || name.starts_with("base_model.model.");
  const std::filesystem::path file = lora.files().front().path().parent_path() / "adapter_config.json";
  return peft && std::filesystem::exists(file) ? read_file(file, kConfigLimit, "adapter_config.json") : "";
}

/// Version and content of the library that makes a component: changed code makes a changed cache.
std::string identity_of_plugin(const plugin::Found& found, const std::string& kind, const std::string& name) {
  const plugin::Manifest* manifest = plugin::find_manifest(found.manifests, kind, name);
  return manifest == nullptr ? "" : manifest->version + " " + xxh128_file(manifest->library);
}

cache::EncoderIdentity identity_of_encoder(const plugin::Found& found, const std::string& kind,
                                           const recipe::Component& component, const weights::ModelFiles* files) {
  cache::EncoderIdentity identity;
  identity.name = component.kind;
  identity.component = identity_of_plugin(found, kind, component.kind);
  if (files != nullptr) identity.weights = files->identity() + " " + xxh128(files->config().value_or(""));
  identity.options = recipe::options_identity(component.options, plugin::schema_of(found, kind, component.kind));
  identity.dtype = component.dtype;
  return identity;
}

/// What computes: versions, and the content of every plugin that the recipe names.
std::string identity_of_program(const recipe::Recipe& recipe, const plugin::Found& found) {
  FieldHash hash;
  hash.add(TRAINER_VERSION).add(TORCH_VERSION);
  const auto add = [&](const std::string& kind, const std::string& name) {
    hash.add(identity_of_plugin(found, kind, name));
  };
  add("model", recipe.model.kind);
  add("objective", recipe.objective.kind);
  add("placement", recipe.placement.kind);
  if (recipe.adapter) add("adapter", recipe.adapter->kind);
  for (const recipe::Component& strategy : recipe.memory.components) add("memory", strategy.kind);
  add("text_encoder", recipe.text_encoder.kind);
  if (recipe.pictures()) add("autoencoder", recipe.autoencoder.kind);
  return hash.hex();
}

/// "NAME OPTIONS" of a weight format, with all options hashed.
std::string format_as_first_recorded(assembly::Components& components, const std::string& now) {
  const std::string name = now.substr(0, now.find(' '));
  const recipe::ComponentSchema& schema = plugin::schema_of(components.plugins().found(), "memory", name);
  std::vector<Options> choices;  // of the recipe, or of its memory budget
  for (const recipe::Component& component : components.recipe().memory.components)
    if (component.kind == name) choices.push_back(component.options);
  for (const recipe::Candidate& one : schema.candidates) choices.emplace_back("memory." + name, one.options);
  for (const Options& options : choices)
    if (now == name + " " + recipe::options_identity(options, schema))
      return name + " " + recipe::identity_of_all(options);
  return now;
}

}  // namespace

std::map<std::string, std::string> identities_of_weights(const recipe::Recipe& recipe, const WeightSource& model) {
  const auto files = weights::ModelFiles::open(recipe.model.path, {.component = "transformer"});
  std::map<std::string, std::string> all{{"model", model.identity()},
                                         {"model_config", xxh128(files->config().value_or(""))}};
  if (!recipe.adapter || recipe.adapter->path.empty()) return all;
  const auto lora = weights::ModelFiles::open(recipe.adapter->path);
  all["start"] = lora->identity();
  all["start_config"] = xxh128(text_beside(*lora));
  return all;
}

EncoderIdentities identities_of(assembly::Encoders& encoders) {
  const recipe::Recipe& recipe = encoders.components().recipe();
  const plugin::Found& found = encoders.components().plugins().found();
  EncoderIdentities identities;
  identities.text_encoder =
      identity_of_encoder(found, "text_encoder", recipe.text_encoder, encoders.text_encoder_files().get());
  if (const auto tokenizer = encoders.tokenizer()) identities.text_encoder.tokenizer = tokenizer->content_hash();
  if (recipe.pictures())
    identities.autoencoder =
        identity_of_encoder(found, "autoencoder", recipe.autoencoder, encoders.autoencoder_files().get());
  return identities;
}

std::string identity_of(const EncoderIdentities& encoders) {
  FieldHash hash;
  for (const cache::EncoderIdentity* e : {&encoders.text_encoder, &encoders.autoencoder})
    hash.add(e->name).add(e->weights).add(e->tokenizer).add(e->options).add(e->dtype);
  return hash.hex();
}

std::string identity_of(const data::Dataset& dataset) {
  FieldHash hash;
  for (const data::Sample& sample : dataset.samples)
    hash.add(sample.content).add(sample.caption).add(sample.bucket.text()).add(sample.repeats);
  return hash.hex();
}

std::map<std::string, std::string> identities_of_data(assembly::Encoders& encoders, const data::Dataset& dataset) {
  const recipe::Recipe& recipe = encoders.components().recipe();
  const bool all = !recipe.validates();
  return {{"data", identity_of(all ? dataset : data::part_of(dataset, data::hold_out(dataset, recipe), false))},
          {"encoders", identity_of(identities_of(encoders))}};
}

std::string as_first_recorded(assembly::Encoders& encoders, const std::string& key, const std::string& now) {
  if (key == "formats") return format_as_first_recorded(encoders.components(), now);
  if (key != "encoders") return now;
  const recipe::Recipe& recipe = encoders.components().recipe();
  EncoderIdentities identities = identities_of(encoders);
  identities.text_encoder.options = recipe::identity_of_all(recipe.text_encoder.options);
  if (recipe.pictures()) identities.autoencoder.options = recipe::identity_of_all(recipe.autoencoder.options);
  return identity_of(identities);
}

void require_same_on_all(assembly::Encoders& encoders, distributed::Group& ranks) {
  assembly::Components& components = encoders.components();
  const recipe::Recipe& recipe = components.recipe();
  ranks.require_same("the program (version and plugins)", identity_of_program(recipe, components.plugins().found()));
  ranks.require_same("the recipe", recipe::to_toml(recipe));
  const auto files = weights::ModelFiles::open(recipe.model.path, {.component = "transformer"});
  std::map<std::string, std::string> weights = identities_of_weights(recipe, *files);
  ranks.require_same("the model (" + recipe.model.path + ")", weights["model"] + weights["model_config"]);
  ranks.require_same("the set of encoders", identity_of(identities_of(encoders)));
  if (recipe.adapter && !recipe.adapter->path.empty())
    ranks.require_same("the adapter to start from (" + recipe.adapter->path + ")",
                       weights["start"] + weights["start_config"]);
  ranks.require_apart(assembly::identities_of(components.devices().training()));
}

}  // namespace trainer::identity
