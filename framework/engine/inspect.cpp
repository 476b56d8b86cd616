/// @file `trainer inspect FILE`: what a weight file, model folder, LoRA or checkpoint is.
#include <base/printable.hpp>
#include <base/units.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/recovery.hpp>
#include <checkpoint/store.hpp>
#include <engine/commands.hpp>
#include <engine/inspect.hpp>
#include <nlohmann/json.hpp>
#include <plugin/loader.hpp>
#include <weights/convert.hpp>
#include <weights/model_files.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

namespace trainer::engine {
namespace {

namespace fs = std::filesystem;
constexpr int kKeyWidth = 14;
constexpr const char *kAutoencoder = "autoencoder (VAE)", *kTextEncoder = "text encoder (language model)",
                     *kCacheEntry = "cache entry";
constexpr uint64_t kReadAlways = uint64_t{1} << 30;  // values of smaller files are looked at without being asked

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
    return files.metadata().count("kind") != 0 ? kCacheEntry + (": " + files.metadata().at("kind")) : kCacheEntry;
  if (has(files, {"param.", "optim."})) return "part of a checkpoint: inspect its folder";
  return {};
}

/// What the names that other programs give tell.
std::string kind_by_content(const weights::ModelFiles& files) {
  if (std::string ours = kind_of_ours(files); !ours.empty()) return ours;
  if (has(files, {"encoder.", "decoder.", "conv"})) return kAutoencoder;
  if (has(files, {"embed_tokens", "layers.0.", "self_attn"})) return kTextEncoder;
  return "tensors";
}

void inspect_unknown(Json& json, const std::shared_ptr<weights::ModelFiles>& opened, plugin::Loader& loader,
                     Json not_a_model_of) {
  const weights::ModelFiles& files = *opened;
  const std::string kind = kind_by_content(files);
  json["what"] = kind;
  if (kind.starts_with(kCacheEntry)) json["read_by"] = "trainer (a run with these data and encoders)";
  if (const nlohmann::json config = config_of(files); config.is_object()) {
    for (const char* key : {"_class_name", "architectures", "model_type"}) {
      if (!config.contains(key)) continue;
      const nlohmann::json& value = config.at(key);
      json["config"][key] = value;
      const nlohmann::json& name = value.is_array() && !value.empty() ? value.front() : value;
      if (json["what"] == kind && name.is_string()) json["what"] = kind + " of " + name.get<std::string>();
    }
  }
  const bool encoder = kind == kAutoencoder
                           ? inspect_encoder(json, opened, loader, "autoencoder")
                           : kind == kTextEncoder && inspect_encoder(json, opened, loader, "text_encoder");
  if (!encoder && !not_a_model_of.empty()) json["not_a_model_of"] = std::move(not_a_model_of);
  json["names"] = Json::array();
  for (const std::string& name : files.names())
    json["names"].push_back(name + "  " + dtype_text(files.find(name)->dtype) + " " +
                            shape_text(files.find(name)->shape));
}

/// The newest checkpoint where the run saved it elsewhere, in its checkpoint.fallback; nullopt when it is not there.
std::optional<fs::path> checkpoint_elsewhere(const fs::path& folder) {
  try {
    const std::optional<checkpoint::Committed> noted = checkpoint::committed(folder);
    if (!noted || !checkpoint::looks_whole(noted->folder)) return {};
    const bool here =
        noted->folder.parent_path().lexically_normal() == fs::absolute(folder / "ckpt").lexically_normal();
    return here ? std::nullopt : std::optional(noted->folder);
  } catch (const Error&) {  // a note that cannot be read names nothing
    return {};
  }
}

/// A run's folder is many things: says which of them to name, the newest first.
void refuse_run_folder(const fs::path& folder) {
  if (!fs::is_regular_file(folder / "run.json")) return;
  std::vector<std::string> names;
  std::error_code absent;
  if (const fs::path ckpt = folder / "ckpt"; fs::is_directory(ckpt, absent))
    if (const std::vector<int64_t> steps = checkpoint::steps_in(ckpt); !steps.empty())
      names.push_back("ckpt/" + checkpoint::step_name(steps.back()));
  if (const auto elsewhere = checkpoint_elsewhere(folder)) names.insert(names.begin(), elsewhere->string());
  for (const char* kind : {"lora", "model"}) {
    std::optional<fs::directory_entry> newest;
    for (const auto& entry : fs::directory_iterator(folder / kind, absent))
      if (entry.path().extension() == ".safetensors" &&
          (!newest || entry.last_write_time() > newest->last_write_time()))
        newest = entry;
    if (newest) names.push_back(std::string(kind) + "/" + newest->path().filename().string());
  }
  std::string listed;
  for (const std::string& name : names) listed += (listed.empty() ? "" : ", ") + name;
  throw Error(ExitCode::not_found,
              folder.string() + ": this is the folder of a run; " +
                  (names.empty() ? "it holds no checkpoint and no result yet" : "name what in it is meant: " + listed));
}

/// A value on lines of its own: nothing that a file holds can look like another line or command the terminal.
std::string text_of(const Json& value, int indent) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  const std::string margin = "\n" + std::string(static_cast<std::size_t>(indent) + 1, ' ');
  std::string lines;
  std::string_view rest = text;
  for (std::size_t end; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1))
    lines += printable(rest.substr(0, end)) + margin;
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

int command_inspect(const InspectRequest& request) {
  fs::path path = request.file;
  if (path.filename() == checkpoint::kManifestName && fs::exists(path)) path = fs::absolute(path).parent_path();
  const bool folder = fs::is_directory(path);  // throws for what cannot be looked at, before a name is put behind it
  if (folder) refuse_run_folder(path);
  Json json;
  plugin::Loader loader(request.plugins);
  if (folder && fs::exists(path / checkpoint::kManifestName)) {
    json = inspect_checkpoint(path, loader);
  } else {
    const std::shared_ptr<weights::ModelFiles> files = weights::ModelFiles::open(path);
    const bool ours = !kind_of_ours(*files).empty();
    Json refusals;
    if (ours || (!inspect_lora(json, *files, loader) && !inspect_model(json, files, loader, refusals)))
      inspect_unknown(json, files, loader, std::move(refusals));
    add_totals(json, *files);
    if (request.values || files->total_bytes() < kReadAlways) add_finite(json, *files);
  }
  if (request.json)
    std::printf("%s\n", printable_json(json).c_str());
  else
    print(json, 0);
  return 0;
}

}  // namespace trainer::engine
