#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <adapter/adapter_file.hpp>
#include <adapter/file_problems.hpp>
#include <adapter/lora_stated.hpp>
#include <trainer/sdk/names.hpp>
#include <weights/convert.hpp>
#include <weights/write.hpp>

#include <algorithm>
#include <set>

namespace trainer::adapter {
namespace {

constexpr const char* kDown = "lora_A.weight";
constexpr const char* kUp = "lora_B.weight";
constexpr const char* kAlpha = "alpha";
/// Names the kind in our files of adapters that are no LoRA.
constexpr const char* kKind = "trainer.adapter";

bool is_pair_end(const std::string& end) { return end == kDown || end == kUp || end == kAlpha; }

bool lists(const AdapterKind& kind, const std::string& end) {
  return std::find(kind.tensors.begin(), kind.tensors.end(), end) != kind.tensors.end();
}

bool reads_pairs(const AdapterKind& kind) { return lists(kind, kDown) && lists(kind, kUp); }

/// What a tensor is of its layer: "a.b.lokr_w1" is the `end` "lokr_w1" of the `stem` "a.b".
struct Part {
  std::string stem, end;
};

/// The longest end that the kinds list; nullopt for none.
std::optional<Part> part_of(const std::string& name, std::span<const AdapterKind> kinds) {
  std::size_t longest = 0;
  for (const AdapterKind& kind : kinds)
    for (const std::string& end : kind.tensors)
      if (end.size() > longest && name.size() > end.size() + 1 && name.ends_with(end) &&
          name[name.size() - end.size() - 1] == '.')
        longest = end.size();
  if (longest == 0) return {};
  return Part{name.substr(0, name.size() - longest - 1), name.substr(name.size() - longest)};
}

/// The same of a LoRA matrix in any spelling, under its canonical end.
std::optional<Part> pair_part_of(const std::string& name) {
  if (!other_adapter(name).empty()) return {};
  const std::optional<LoraKey> key = parse_lora_key(name);
  if (!key) return {};
  return Part{key->stem, key->part == LoraPart::down ? kDown : key->part == LoraPart::up ? kUp : kAlpha};
}

/// Whether every tensor is a part of a LoRA and there is a matrix.
bool is_pairs(const weights::TensorFile& file) {
  bool matrix = false;
  for (const std::string& name : file.names()) {
    const std::optional<Part> part = pair_part_of(name);
    if (!part) return false;
    matrix = matrix || part->end != kAlpha;
  }
  return matrix;
}

/// Reads a file of an adapter that is no LoRA.
class AdapterReader {
 public:
  AdapterReader(const weights::TensorFile& file, const LoraFamily& family, const AdapterKind& kind)
      : file_(file), family_(family), kind_(kind), names_(family) {}

  ReadAdapter read() {
    for (const std::string& name : file_.names()) collect(name);
    problems_.throw_if_any(
        file_.path().string() + ": not a file of the adapter " + quote_name(kind_.name) + " for " + family_.name + ":",
        "LORA_KEYS");
    ReadAdapter read{kind_.name, format(), {}, {}, stated_step(file_.metadata())};
    read.file = {std::move(layers_), file_.metadata()};
    return read;
  }

 private:
  void collect(const std::string& name) {
    const std::optional<Part> part = part_of(name, {&kind_, 1});
    if (!part) return problems_.add(quote_name(name) + " is no tensor of this adapter");
    const std::optional<LoraTarget> target = names_.resolve(part->stem);
    if (!target)
      return problems_.add(quote_name(name) + " belongs to no layer of " + family_.name +
                           names_.suggestion(part->stem));
    if (target->layers.size() != 1 || target->halves_swapped)
      return problems_.add(quote_name(name) +
                           " is stored for layers that this format joins or reorders; of such a "
                           "file only LoRA is read");
    prefixes_.insert(target->prefix);
    canonical_ = canonical_ && target->name == target->layers.front() && part->stem == target->prefix + target->name;
    at::Tensor& place = layers_[target->layers.front()][part->end];
    if (place.defined()) return problems_.add(quote_name(name) + " is there twice, spelled differently");
    place = file_.read(name);
    if (!weights::all_finite(place))
      throw Error(ExitCode::bad_input, file_.path().string() + ": " + quote_name(name) + " holds NaN or infinity",
                  "LORA_NONFINITE");
  }

  [[nodiscard]] std::string format() const {
    for (const LoraFormat& format : family_.formats)
      if (canonical_ && !format.aliased && format.keys == LoraKeys::peft && prefixes_ == std::set{format.prefix})
        return format.name;
    return "other";
  }

  const weights::TensorFile& file_;
  const LoraFamily& family_;
  const AdapterKind& kind_;
  LayerNames names_;
  std::map<std::string, NamedTensors> layers_;
  std::set<std::string> prefixes_;
  bool canonical_ = true;  ///< every name is the canonical one after its prefix
  FileProblems problems_;
};

/// The layer under the name that the format has for it.
std::string name_in(const LoraFormat& format, const LoraFamily& family, const LayerNames& names,
                    const std::string& layer) {
  std::string name = layer;
  if (format.aliased) {
    const std::optional<LoraTarget> alias = names.alias_of(layer);
    if (!alias)
      throw Error(ExitCode::bad_input, "the layer " + quote_name(layer) + " of " + family.name +
                                           " has no name in this format" + names.suggestion(layer));
    if (alias->layers.size() != 1 || alias->halves_swapped)
      throw Error(ExitCode::bad_input, "the format " + quote_name(format.name) + " joins or reorders the layer " +
                                           quote_name(layer) + " as " + quote_name(alias->name) +
                                           ", which is possible with LoRA matrices only; choose another format");
    name = alias->name;
  }
  if (format.keys == LoraKeys::kohya) std::replace(name.begin(), name.end(), '.', '_');
  return format.prefix + name;
}

}  // namespace

std::vector<std::string> ReadAdapter::layers() const {
  std::vector<std::string> names;
  for (const auto& [name, tensors] : file.layers) names.push_back(name);
  return names;
}

std::string stated_kind(const weights::TensorFile& file) {
  const auto it = file.metadata().find(kKind);
  return it == file.metadata().end() ? "" : it->second;
}

const AdapterKind* kind_of(const weights::TensorFile& file, std::span<const AdapterKind> kinds) {
  if (const std::string stated = stated_kind(file); !stated.empty()) {
    const auto it =
        std::find_if(kinds.begin(), kinds.end(), [&](const AdapterKind& one) { return one.name == stated; });
    return it == kinds.end() ? nullptr : &*it;
  }
  std::set<std::string> ends;
  const bool pairs = is_pairs(file);
  for (const std::string& name : file.names()) {
    const std::optional<Part> part = pairs ? pair_part_of(name) : part_of(name, kinds);
    if (!part) return nullptr;
    ends.insert(part->end);
  }
  const AdapterKind* found = nullptr;
  for (const AdapterKind& kind : kinds) {
    const bool all = std::all_of(ends.begin(), ends.end(), [&](const std::string& end) {
      return lists(kind, end) || (pairs && end == kAlpha);  // which the host gives with every pair
    });
    const bool better = found == nullptr || (!pairs && kind.tensors.size() < found->tensors.size());
    if (all && !ends.empty() && better) found = &kind;
  }
  return found;
}

bool is_adapter(const weights::TensorFile& file, std::span<const AdapterKind> kinds) {
  if (!stated_kind(file).empty() || kind_of(file, kinds) != nullptr) return true;
  for (const std::string& name : file.names()) {
    const std::optional<LoraKey> key = parse_lora_key(name);
    if ((key && key->part != LoraPart::alpha) || !other_adapter(name).empty()) return true;
  }
  return false;
}

bool knows_names(const LoraFamily& family, const weights::TensorFile& file, std::span<const AdapterKind> kinds) {
  const LayerNames names(family);
  const std::vector<std::string> all = file.names();
  const auto known = std::count_if(all.begin(), all.end(), [&](const std::string& name) {
    const std::optional<LoraKey> key = parse_lora_key(name);
    const std::optional<Part> part = key ? Part{key->stem, {}} : part_of(name, kinds);
    return part && names.resolve(part->stem);
  });
  return 2 * static_cast<std::size_t>(known) > all.size();
}

ReadAdapter read_adapter(const weights::TensorFile& file, const LoraFamily& family, const AdapterKind* kind) {
  const bool only_pairs = kind == nullptr || std::all_of(kind->tensors.begin(), kind->tensors.end(), is_pair_end);
  if (only_pairs || (reads_pairs(*kind) && is_pairs(file)))
    return as_adapter(read_lora(file, family), kind == nullptr ? "" : kind->name, file.metadata());
  return AdapterReader(file, family, *kind).read();
}

ReadAdapter as_adapter(LoraFile lora, const std::string& kind, std::map<std::string, std::string> metadata) {
  ReadAdapter read{kind, lora.format, {{}, std::move(metadata)}, {}, lora.step};
  for (const LoraLayer& layer : lora.layers)
    read.file.layers[layer.layer] = {
        {kDown, layer.down}, {kUp, layer.up}, {kAlpha, at::scalar_tensor(layer.alpha, at::kDouble)}};
  read.lora = std::move(lora);
  return read;
}

std::optional<LoraFile> lora_of(const AdapterFile& adapter) {
  LoraFile lora;
  for (const auto& [name, tensors] : adapter.layers) {
    const auto down = tensors.find(kDown), up = tensors.find(kUp), alpha = tensors.find(kAlpha);
    const bool others =
        std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return !is_pair_end(tensor.first); });
    if (others || down == tensors.end() || up == tensors.end()) return {};
    LoraLayer layer{name, down->second, up->second, 0};
    layer.alpha = alpha == tensors.end() ? static_cast<double>(layer.rank()) : alpha->second.item<double>();
    lora.layers.push_back(std::move(layer));
  }
  if (lora.layers.empty()) return {};
  lora.more = adapter.metadata;
  return lora;
}

LoraFormat format_of_run(const AdapterFile& adapter, const LoraFamily& family) {
  if (lora_of(adapter)) return family.formats.front();
  for (const LoraFormat& format : family.formats)
    if (!format.aliased && format.keys == LoraKeys::peft) return format;
  return plain_family(family.name).formats.front();
}

void write_adapter(const std::filesystem::path& file, const AdapterFile& adapter, const std::string& kind,
                   const LoraFamily& family, const LoraFormat& format, std::optional<int64_t> step) {
  if (std::optional<LoraFile> lora = lora_of(adapter)) {
    lora->step = step;
    return write_lora(file, *lora, family, format);
  }
  const LayerNames names(family);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [layer, parts] : adapter.layers)
    for (const auto& [end, tensor] : parts)
      tensors.emplace_back(name_in(format, family, names, layer) + "." + end, tensor);
  for (const auto& [name, tensor] : tensors)
    if (!weights::all_finite(tensor))
      throw Error(ExitCode::non_finite, "\"" + name + "\" holds NaN or infinity: nothing is exported");
  weights::Metadata metadata{{"format", "pt"}, {"software", "trainer"}, {kKind, kind}};
  if (step) metadata["step"] = std::to_string(*step);
  metadata.insert(adapter.metadata.begin(), adapter.metadata.end());
  weights::write_safetensors(file, tensors, metadata);
}

void check_layers(const std::string& where, const ReadAdapter& adapter, std::span<const Linear> model) {
  if (adapter.lora) return check_layers(where, adapter.lora->layers, model);
  std::vector<std::string> names;
  for (const Linear& linear : model) names.push_back(linear.name());
  FileProblems problems;
  for (const std::string& layer : adapter.layers())
    if (std::find(names.begin(), names.end(), layer) == names.end())
      problems.add("the model has no layer " + quote_name(layer) + did_you_mean(layer, names));
  problems.throw_if_any(where + ": this adapter is for another model:", "LORA_LAYERS");
}

}  // namespace trainer::adapter
