#include <weights/model_files.hpp>

#include <base/files.hpp>
#include <base/hash.hpp>
#include <base/heartbeat.hpp>
#include <base/json_depth.hpp>
#include <base/log.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>
#include <weights/shard_index.hpp>

#include <algorithm>
#include <system_error>
#include <utility>

namespace trainer::weights {
namespace {

namespace fs = std::filesystem;

constexpr char kIndexSuffix[] = ".safetensors.index.json";
constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;

/// Names in `folder` that end in `suffix`, sorted, hidden ones (our temporary files) left out.
std::vector<std::string> names_ending_in(const fs::path& folder, const std::string& suffix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(suffix) && name[0] != '.') names.push_back(name);
  }
  if (error) throw Error(ExitCode::io, "cannot list folder " + folder.string() + ": " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

/// The one to take: a customary name, else the only one, else empty.
std::string choose(const std::vector<std::string>& names, const std::string& suffix) {
  for (const char* stem : {"diffusion_pytorch_model", "model"}) {
    if (std::find(names.begin(), names.end(), stem + suffix) != names.end()) return stem + suffix;
  }
  return names.size() == 1 ? names[0] : std::string();
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return text + (names.size() > 8 ? ", ..." : "");
}

/// What to say about a folder that holds no model by itself.
std::string folder_help(const fs::path& folder) {
  std::vector<std::string> components;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->is_directory(error) && !names_ending_in(it->path(), ".safetensors").empty()) {
      components.push_back(it->path().filename().string());
    }
  }
  std::sort(components.begin(), components.end());
  return components.empty() ? "; is the download complete?" : "; name one of its folders: " + joined(components);
}

/// The whole of a small file; of a large one 1,024 pieces spread over it. A retrained or damaged model differs in
/// nearly all of them, and 64 MB are read in a fraction of a second where 64 GB take minutes.
void add_content(FieldHash& hash, const TensorFile& file) {
  constexpr uint64_t kWhole = uint64_t{256} << 20, kPiece = uint64_t{64} << 10, kPieces = 1024;
  const uint64_t size = file.file().size();
  hash.add(file.header_hash()).add(static_cast<int64_t>(size));
  const uint64_t pieces = size <= kWhole ? (size + kPiece - 1) / kPiece : kPieces;
  std::string piece;
  for (uint64_t i = 0; i < pieces; ++i) {
    const uint64_t begin = size <= kWhole ? i * kPiece : (size - kPiece) / (kPieces - 1) * i;
    beat();
    piece.resize(std::min(kPiece, size - begin));
    file.file().read(begin, piece.data(), piece.size());
    hash.add(piece);
  }
}

}  // namespace

std::unique_ptr<ModelFiles> ModelFiles::open(const fs::path& path, const ModelOptions& options) {
  std::unique_ptr<ModelFiles> model(new ModelFiles);
  model->path_ = path;
  std::error_code error;
  if (!options.component.empty() && fs::is_directory(path / options.component, error)) {
    model->path_ = path / options.component;
  }
  if (fs::is_directory(model->path_, error)) {
    model->open_folder(options);
  } else if (const std::string name = path.filename().string(); name.ends_with(kIndexSuffix)) {
    model->path_ = path.has_parent_path() ? path.parent_path() : fs::path(".");
    model->open_index(name, options);
  } else {
    model->files_.emplace_back(MappedFile::open(model->path_), options.read);
  }
  const fs::path folder = fs::is_directory(model->path_, error) ? model->path_ : model->path_.parent_path();
  if (fs::exists(folder / "config.json", error)) {
    model->config_ = read_file(folder / "config.json", kMaxConfigBytes, "model configuration");
    require_shallow(*model->config_, (folder / "config.json").string());  // plugins of others get it as text
  }
  for (std::size_t i = 0; i < model->files_.size(); ++i) {
    const TensorFile& file = model->files_[i];
    for (const TensorEntry& entry : file.header().entries) model->holders_.emplace(entry.name, i);
    model->metadata_.insert(file.metadata().begin(), file.metadata().end());
  }
  return model;
}

void ModelFiles::open_folder(const ModelOptions& options) {
  const std::vector<std::string> indices = names_ending_in(path_, kIndexSuffix);
  if (const std::string index = choose(indices, kIndexSuffix); !index.empty()) return open_index(index, options);
  if (!indices.empty()) {
    throw Error(ExitCode::bad_input,
                path_.string() + ": it has several indices (" + joined(indices) +
                    "); keep one, or name a "
                    "file",
                "MODEL_FILES");
  }
  const std::vector<std::string> names = names_ending_in(path_, ".safetensors");
  const std::string name = choose(names, ".safetensors");
  if (names.empty()) {
    throw Error(ExitCode::not_found,
                path_.string() + ": there is no .safetensors file in this folder" + folder_help(path_), "MODEL_FILES");
  }
  if (name.empty()) {
    throw Error(ExitCode::bad_input,
                path_.string() + ": it has several models (" + joined(names) +
                    ") and no index that joins "
                    "them; name one file",
                "MODEL_FILES");
  }
  files_.emplace_back(MappedFile::open(path_ / name), options.read);
}

void ModelFiles::open_index(const std::string& index_name, const ModelOptions& options) {
  const std::string shown = (path_ / index_name).string();
  const ShardIndex index = parse_shard_index(read_file(shown, kMaxIndexBytes, "shard index"), shown);
  for (MappedFile& file : open_shards(index, path_)) {
    files_.emplace_back(std::move(file), options.read);
  }
  std::vector<const Header*> headers;
  for (const TensorFile& file : files_) headers.push_back(&file.header());
  for (const std::string& warning : check_shards(index, headers, options.read.profile)) log_warning(warning);
}

const TensorFile& ModelFiles::holder(std::string_view name) const {
  const auto it = holders_.find(name);
  if (it != holders_.end()) return files_[it->second];
  throw Error(ExitCode::bad_input,
              describe() + ": there is no tensor " + quote_name(name) + did_you_mean(name, names()), "ST_NO_TENSOR");
}

std::vector<std::string> ModelFiles::names() const {
  std::vector<std::string> names;
  names.reserve(holders_.size());
  for (const auto& [name, file] : holders_) names.push_back(name);
  return names;
}

const TensorInfo* ModelFiles::find(std::string_view name) const {
  const auto it = holders_.find(name);
  return it == holders_.end() ? nullptr : files_[it->second].find(name);
}

at::Tensor ModelFiles::read(std::string_view name) { return holder(name).read(name); }

at::Tensor ModelFiles::read_rows(std::string_view name, int64_t begin, int64_t end) {
  return holder(name).read_rows(name, begin, end);
}

std::string ModelFiles::identity() const {
  if (!identity_.empty()) return identity_;
  FieldHash hash;
  for (const TensorFile& file : files_) add_content(hash, file);
  identity_ = hash.hex();
  return identity_;
}

uint64_t ModelFiles::total_bytes() const {
  uint64_t total = 0;
  for (const TensorFile& file : files_) total += file.file().size() - file.header().data_offset;
  return total;
}

}  // namespace trainer::weights
