// What a model or an encoder is: the plugins are asked, on headers and shapes alone.
#include <assembly/model_builder.hpp>
#include <engine/inspect.hpp>
#include <planner/shape_source.hpp>
#include <recipe/default_options.hpp>

namespace trainer::engine {
namespace {

/// Knows every token: what is made with it is never given a text.
class AnyTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::vector<int64_t> encode(std::string_view) const override { return {0}; }
  [[nodiscard]] std::optional<int64_t> id(std::string_view) const override { return 0; }
};

/// "trainer", with what a recipe says to use it, and the library whose class config.json names.
std::string readers(const weights::ModelFiles& files, const std::string& kind, const std::string& component) {
  std::string text = "trainer (" + kind + ".kind = \"" + component + "\")";
  const nlohmann::json config = config_of(files);
  if (!config.is_object()) return text;
  if (const auto name = config.find("_class_name"); name != config.end() && name->is_string())
    text += ", diffusers (" + name->get<std::string>() + ")";
  if (const auto names = config.find("architectures"); names != config.end() && names->is_array())
    for (const nlohmann::json& name : *names)
      if (name.is_string()) text += ", transformers (" + name.get<std::string>() + ")";
  return text;
}

/// Throws when the plugin does not take the files.
void make_encoder(const std::shared_ptr<weights::ModelFiles>& files, plugin::Loader& loader,
                  const recipe::ComponentSchema& schema) {
  loader.require(schema.kind, schema.name);
  const Options options = recipe::default_options(schema);
  const at::Device dry(at::kMeta, 0);
  EncoderContext context{options, planner::shapes_of(files, dry), files->config().value_or(""), nullptr};
  context.device = dry;
  if (schema.kind == "autoencoder") {
    loader.registry().autoencoders.at(schema.name).create(context);
  } else {
    context.tokenizer = std::make_shared<AnyTokenizer>();
    loader.registry().text_encoders.at(schema.name).create(context);
  }
}

}  // namespace

nlohmann::json config_of(const weights::ModelFiles& files) {
  return nlohmann::json::parse(files.config().value_or(""), nullptr, /*allow_exceptions=*/false);
}

bool inspect_model(Json& json, const std::shared_ptr<weights::ModelFiles>& files, plugin::Loader& loader,
                   Json& refusals) {
  for (const plugin::Manifest& manifest : loader.found().manifests) {
    if (manifest.schema.kind != "model") continue;
    try {
      loader.require("model", manifest.schema.name);
      const ModelComponent& offered = loader.registry().models.find(manifest.schema.name)->second;
      std::shared_ptr<WeightSource> source = files;
      if (offered.map_weights != nullptr) source = offered.map_weights(files);
      assembly::SourceBuilder builder(*source, {.headers_only = true});
      const Options options = recipe::default_options(manifest.schema);
      const auto model = offered.create(ModelContext{options, *source, files->config().value_or(""), builder});
      json["what"] = "model for plugin \"" + manifest.schema.name + "\"";
      json["description"] = model->describe();
      json["read_by"] = readers(*files, "model", manifest.schema.name);
      json["linear_layers"] = Json::array();
      for (const Linear& linear : builder.inventory().linears)
        json["linear_layers"].push_back(linear.name() + "  " + std::to_string(linear.state().out) + " x " +
                                        std::to_string(linear.state().in));
      return true;
    } catch (const std::exception& error) {
      refusals[manifest.schema.name] = error.what();  // the next plugin may know it
    }
  }
  return false;
}

bool inspect_encoder(Json& json, const std::shared_ptr<weights::ModelFiles>& files, plugin::Loader& loader,
                     const std::string& kind) {
  for (const plugin::Manifest& manifest : loader.found().manifests) {
    const bool reads_none = kind == "text_encoder" && !manifest.schema.needs_the("weights");
    if (manifest.schema.kind != kind || reads_none) continue;
    try {
      make_encoder(files, loader, manifest.schema);
      json["read_by"] = readers(*files, kind, manifest.schema.name);
      return true;
    } catch (const std::exception&) {  // the next plugin may know it
    }
  }
  return false;
}

}  // namespace trainer::engine
