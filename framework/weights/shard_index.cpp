#include <weights/shard_index.hpp>

#include <trainer/sdk/names.hpp>
#include <weights/bad_file.hpp>
#include <weights/json_events.hpp>

#include <set>
#include <utility>

namespace trainer::weights {
namespace {

constexpr char kFetchIndex[] = "; the index is damaged: fetch it again";
constexpr std::size_t kMaxDepth = 4;

/// One path component that ends in .safetensors, so that no index can name a file outside its folder.
void check_shard_name(const std::string& file, const std::string& name) {
  constexpr std::string_view kSuffix = ".safetensors";
  const bool separator = name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos;
  if (separator || name == "." || name == "..") {
    fail(file, "IDX_PATH", "shard name " + quote_name(name) + " leaves the model folder; do not use this model");
  }
  if (name.size() <= kSuffix.size() || name.size() > 255 || !name.ends_with(kSuffix)) {
    fail(file, "IDX_PATH",
         "shard name " + quote_name(name) + " is not a file name of up to 255 bytes that ends in .safetensors" +
             kFetchIndex);
  }
}

class IndexEvents final : public JsonEvents {
 public:
  explicit IndexEvents(ShardIndex& index) : index_(index) {}

  void begin(bool object) override {
    if (++depth_ > kMaxDepth) reject("it nests deeper than " + std::to_string(kMaxDepth));
    keys_[depth_].clear();
    if (depth_ == 1 && !object) reject("it must be a JSON object");
    if (depth_ == 2 && section_ == "weight_map" && !object) reject("\"weight_map\" must be an object");
    if (depth_ == 3 && section_ == "weight_map")
      reject("the shard of tensor " + quote_name(key_) + " must be a string");
    if (depth_ == 2 && section_ == "weight_map") seen_ = true;
  }
  void finish() override { --depth_; }
  void key(std::string&& name) override {
    const bool tensor = depth_ == 2 && section_ == "weight_map";
    if (tensor ? index_.weight_map.contains(name) : !keys_[depth_].insert(name).second) {
      fail(index_.file_name, "IDX_DUP_KEY",
           "the key " + quote_name(name) +
               " appears twice; readers disagree on which one "
               "counts: fetch the index again");
    }
    if (depth_ == 1) section_ = name;
    key_ = std::move(name);
  }
  void value(JsonScalar&& scalar) override {
    if (depth_ == 0) reject("it must be a JSON object");
    if (depth_ == 1 && section_ == "weight_map") reject("\"weight_map\" must be an object");
    if (depth_ != 2) return;
    if (section_ == "weight_map") return add(std::move(scalar));
    if (section_ == "metadata" && key_ == "total_size") set_total(scalar);
  }
  [[noreturn]] void syntax_error(std::size_t position, const std::string& token, const std::string&) override {
    reject("it is not JSON at byte " + std::to_string(position) + ": " + quote_name(token));
  }
  void finish_all() {
    if (!seen_) reject("it has no \"weight_map\"");
    if (index_.weight_map.empty()) reject("its \"weight_map\" is empty");
    // Positions were given in order of appearance; hand out sorted names.
    std::vector<uint32_t> sorted(shards_.size());
    for (const auto& [name, position] : shards_) {
      sorted[position] = static_cast<uint32_t>(index_.shards.size());
      index_.shards.push_back(name);
    }
    for (auto& [name, position] : index_.weight_map) position = sorted[position];
  }

 private:
  [[noreturn]] void reject(const std::string& text) const { fail(index_.file_name, "IDX_SHAPE", text + kFetchIndex); }
  void add(JsonScalar&& scalar) {
    if (scalar.kind != JsonScalar::Kind::string)
      reject("the shard of tensor " + quote_name(key_) + " must be a string");
    auto it = shards_.find(scalar.text);
    if (it == shards_.end()) {
      check_shard_name(index_.file_name, scalar.text);
      if (shards_.size() == kMaxShards) {
        fail(index_.file_name, "IDX_LIMIT", "more than " + std::to_string(kMaxShards) + " shards" + kFetchIndex);
      }
      it = shards_.emplace(std::move(scalar.text), static_cast<uint32_t>(shards_.size())).first;
    }
    index_.weight_map.emplace(std::move(key_), it->second);
  }
  void set_total(const JsonScalar& scalar) {
    if (scalar.kind == JsonScalar::Kind::integer) index_.total_size = scalar.integer;
    // Some exporters write a float ("1.2e10"): not exact, so it says nothing.
    if (scalar.kind == JsonScalar::Kind::other_number || scalar.kind == JsonScalar::Kind::integer) return;
    reject("\"total_size\" must be a number");
  }

  ShardIndex& index_;
  std::size_t depth_ = 0;
  bool seen_ = false;
  std::string section_, key_;
  std::map<std::string, uint32_t> shards_;
  std::set<std::string> keys_[kMaxDepth + 1];
};

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 20;
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i) text += (i == 0 ? "" : ", ") + quote_name(names[i]);
  return names.size() > kShown ? text + " and " + std::to_string(names.size() - kShown) + " more" : text;
}

}  // namespace

ShardIndex parse_shard_index(std::string_view text, const std::string& file_name) {
  ShardIndex index;
  index.file_name = file_name;
  const auto reject = [&](const std::string& why) { fail(file_name, "IDX_SHAPE", why + kFetchIndex); };
  if (text.size() > kMaxIndexBytes) reject("it has more than " + std::to_string(kMaxIndexBytes) + " bytes");
  if (text.find('\0') != std::string_view::npos) reject("it holds a NUL byte");
  if (text.substr(0, 3) == "\xEF\xBB\xBF") reject("it begins with a byte order mark");
  IndexEvents events(index);
  parse_json(text, events);
  events.finish_all();
  return index;
}

std::vector<std::string> check_shards(const ShardIndex& index, const std::vector<const Header*>& headers,
                                      Profile profile) {
  std::vector<std::string> warnings;
  std::map<std::string_view, uint32_t> holders;  // tensor -> shard that really holds it
  uint64_t total = 0;
  std::vector<std::string> extra;
  for (uint32_t shard = 0; shard < headers.size(); ++shard) {
    for (const TensorEntry& entry : headers[shard]->entries) {
      total += entry.bytes();
      const auto [it, fresh] = holders.emplace(entry.name, shard);
      if (!fresh) {
        fail(index.file_name, "IDX_DUP_TENSOR",
             "tensor " + quote_name(entry.name) + " is in " + index.shards[it->second] + " and in " +
                 index.shards[shard] +
                 ": shards of two exports are mixed; "
                 "fetch the folder again");
      }
      if (!index.weight_map.contains(entry.name)) extra.push_back(entry.name);
    }
  }
  std::vector<std::string> missing;
  for (const auto& [name, shard] : index.weight_map) {
    const auto it = holders.find(name);
    if (it == holders.end()) {
      missing.push_back(name);
    } else if (it->second != shard) {
      fail(index.file_name, "IDX_WRONG_SHARD",
           "tensor " + quote_name(name) + " should be in " + index.shards[shard] + " and is in " +
               index.shards[it->second] +
               ": index and shards are of two exports; "
               "fetch the folder again");
    }
  }
  if (!missing.empty()) {
    fail(index.file_name, "IDX_MISSING_TENSOR",
         std::to_string(missing.size()) + " tensors are not in the shards the index names: " + listed(missing) +
             "; fetch the folder again");
  }
  const auto strict_only = [&](const char* code, const std::string& text) {
    if (profile == Profile::strict) fail(index.file_name, code, text + "; fetch the folder again");
    warnings.push_back(index.file_name + ": " + text);
  };
  if (!extra.empty()) {
    strict_only("IDX_EXTRA_TENSOR",
                std::to_string(extra.size()) + " tensors of the shards are not in the index: " + listed(extra));
  }
  if (index.total_size && *index.total_size != total) {
    strict_only("IDX_TOTAL_SIZE", "it claims " + std::to_string(*index.total_size) +
                                      " bytes of tensors, the shards hold " + std::to_string(total));
  }
  return warnings;
}

}  // namespace trainer::weights
