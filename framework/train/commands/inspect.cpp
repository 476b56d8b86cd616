/// @file `trainer inspect FILE`: what a weight file, model folder, LoRA or checkpoint is.
#include <base/printable.hpp>
#include <base/units.hpp>
#include <checkpoint/store.hpp>
#include <nlohmann/json.hpp>
#include <plugin/loader.hpp>
#include <recipe/default_options.hpp>
#include <train/artifacts/inspect.hpp>
#include <train/assembly/model_builder.hpp>
#include <train/commands/commands.hpp>
#include <weights/convert.hpp>
#include <weights/model_files.hpp>

#include <algorithm>
#include <cstdio>
#include <map>

namespace trainer::train {
namespace {

namespace fs = std::filesystem;
constexpr int kKeyWidth = 14;
constexpr uint64_t kReadAlways = uint64_t{1} << 30;  // values of smaller files are looked at without being asked

/// As the file format names it, e.g. "BF16".
std::string dtype_text(at::ScalarType type) {
  const auto dtype = weights::file_dtype(type);
  return dtype ? std::string(weights::dtype_name(*dtype)) : c10::toString(type);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t side : shape) text += (text.empty() ? "" : " x ") + std::to_string(side);
  return text.empty() ? "scalar" : text;
}

/// Count, elements and dtypes: true of every file.
void add_totals(Json& json, const weights::ModelFiles& files) {
  std::map<std::string, int64_t> dtypes;
  int64_t elements = 0;
  for (const std::string& name : files.names()) {
    const TensorInfo& info = *files.find(name);
    int64_t count = 1;
    for (const int64_t side : info.shape) count *= side;
    elements += count;
    dtypes[dtype_text(info.dtype)] += count;
  }
  json["tensors"] = files.names().size();
  json["parameters"] = elements;
  json["bytes"] = files.total_bytes();
  json["files"] = files.files().size();
  for (const auto& [dtype, count] : dtypes) json["dtypes"][dtype] = count;
  if (!files.metadata().empty()) json["metadata"] = files.metadata();
}

void add_finite(Json& json, weights::ModelFiles& files) {
  Json bad = Json::array();
  for (const std::string& name : files.names()) {
    const at::ScalarType dtype = files.find(name)->dtype;
    if (dtype != at::ScalarType::Undefined && !weights::all_finite(files.read(name))) bad.push_back(name);
  }
  json["finite"] = bad.empty();
  if (!bad.empty()) json["not_finite"] = std::move(bad);
}

/// Asks every model plugin whether it recognises the tensors.
bool inspect_model(Json& json, const std::shared_ptr<weights::ModelFiles>& files, plugin::Loader& loader) {
  Json refusals;
  for (const plugin::Manifest& manifest : loader.found().manifests) {
    if (manifest.schema.kind != "model") continue;
    try {
      loader.require("model", manifest.schema.name);
      const ModelComponent& offered = loader.registry().models.find(manifest.schema.name)->second;
      std::shared_ptr<WeightSource> source = files;
      if (offered.map_weights != nullptr) source = offered.map_weights(files);
      SourceBuilder builder(*source, {.headers_only = true});
      const Options options = recipe::default_options(manifest.schema);
      const auto model = offered.create(ModelContext{options, *source, files->config().value_or(""), builder});
      json["what"] = "model for plugin \"" + manifest.schema.name + "\"";
      json["description"] = model->describe();
      json["linear_layers"] = Json::array();
      for (const Linear& linear : builder.inventory().linears)
        json["linear_layers"].push_back(linear.name() + "  " + std::to_string(linear.state().out) + " x " +
                                        std::to_string(linear.state().in));
      return true;
    } catch (const std::exception& error) {
      refusals[manifest.schema.name] = error.what();  // the next plugin may know it
    }
  }
  if (!refusals.empty()) json["not_a_model_of"] = std::move(refusals);
  return false;
}

bool has(const weights::ModelFiles& files, std::initializer_list<std::string_view> parts) {
  const std::vector<std::string> names = files.names();
  return std::all_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return name.find(part) != std::string::npos; });
  });
}

/// An entry of the cache or a checkpoint's part; empty for files that are not of our run folders.
std::string kind_of_ours(const weights::ModelFiles& files) {
  const auto format = files.metadata().find("format");
  if (format != files.metadata().end() && format->second.starts_with("trainer cache entry"))
    return files.metadata().count("kind") != 0 ? "cache entry: " + files.metadata().at("kind") : "cache entry";
  if (has(files, {"param.", "optim."})) return "part of a checkpoint: inspect its folder";
  return {};
}

/// What the names that other programs give tell.
std::string kind_by_content(const weights::ModelFiles& files) {
  if (std::string ours = kind_of_ours(files); !ours.empty()) return ours;
  if (has(files, {"encoder.", "decoder.", "conv"})) return "autoencoder (VAE)";
  if (has(files, {"embed_tokens", "layers.0.", "self_attn"})) return "text encoder (language model)";
  return "tensors";
}

void inspect_unknown(Json& json, const weights::ModelFiles& files) {
  const std::string kind = kind_by_content(files);
  json["what"] = kind;
  if (files.config()) {
    const Json config = Json::parse(*files.config(), nullptr, /*allow_exceptions=*/false);
    for (const char* key : {"_class_name", "architectures", "model_type"}) {
      if (!config.is_object() || !config.contains(key)) continue;
      const Json& value = config.at(key);
      json["config"][key] = value;
      const Json& name = value.is_array() && !value.empty() ? value.front() : value;
      if (json["what"] == kind && name.is_string()) json["what"] = kind + " of " + name.get<std::string>();
    }
  }
  json["names"] = Json::array();
  for (const std::string& name : files.names())
    json["names"].push_back(name + "  " + dtype_text(files.find(name)->dtype) + " " +
                            shape_text(files.find(name)->shape));
}

Json inspect_checkpoint(const fs::path& folder) {
  const checkpoint::Loaded loaded = checkpoint::load(folder);
  Json json{{"what", "checkpoint"},
            {"step", loaded.manifest.step},
            {"run_id", loaded.manifest.run_id},
            {"tensors", loaded.content.tensors.size()},
            {"whole", true}};
  json["fingerprints"] = loaded.manifest.fingerprints;
  Json names = Json::array(), bad = Json::array();
  int64_t bytes = 0;
  for (const auto& [name, tensor] : loaded.content.tensors) {
    names.push_back(name + "  " + dtype_text(tensor.scalar_type()) + " " + shape_text(tensor.sizes().vec()));
    bytes += static_cast<int64_t>(tensor.nbytes());
    if (!weights::all_finite(tensor)) bad.push_back(name);
  }
  json["bytes"] = bytes;
  json["finite"] = bad.empty();
  if (!bad.empty()) json["not_finite"] = std::move(bad);
  json["names"] = std::move(names);
  return json;
}

/// A value on lines of its own: nothing that a file holds can look like another line or command the terminal.
std::string text_of(const Json& value, int indent) {
  std::string rest = value.is_string() ? value.get<std::string>() : value.dump(), lines;
  for (std::size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1))
    lines += printable(rest.substr(0, end)) + "\n" + std::string(static_cast<std::size_t>(indent) + 1, ' ');
  return lines + printable(rest);
}

void print(const Json& json, int indent) {
  for (const auto& [key, value] : json.items()) {
    std::printf("%*s%-*s", indent, "", kKeyWidth, printable(key).c_str());
    if (value.is_object()) {
      std::printf("\n");
      print(value, indent + 2);
    } else if (value.is_array() && value.size() > 4) {
      std::printf("\n");
      for (const auto& item : value) std::printf("%*s%s\n", indent + 2, "", text_of(item, indent + 2).c_str());
    } else if (key == "bytes") {
      std::printf(" %s\n", format_bytes(static_cast<double>(value.get<int64_t>())).c_str());
    } else if (value.is_number_integer()) {
      std::printf(" %s\n", format_count(value.get<int64_t>()).c_str());
    } else {
      std::printf(" %s\n", text_of(value, indent + kKeyWidth).c_str());
    }
  }
}

}  // namespace

int command_inspect(const Request& request) {
  const fs::path path = request.file;
  Json json;
  if (fs::exists(path / checkpoint::kManifestName)) {
    json = inspect_checkpoint(path);
  } else {
    const std::shared_ptr<weights::ModelFiles> files = weights::ModelFiles::open(path);
    plugin::Loader loader(request.plugins);
    const bool ours = !kind_of_ours(*files).empty();
    if (ours || (!inspect_lora(json, *files, loader) && !inspect_model(json, files, loader)))
      inspect_unknown(json, *files);
    add_totals(json, *files);
    if (request.values || files->total_bytes() < kReadAlways) add_finite(json, *files);
  }
  if (request.json)
    std::printf("%s\n", json.dump(2, ' ', /*ensure_ascii=*/true).c_str());
  else
    print(json, 0);
  return 0;
}

}  // namespace trainer::train
