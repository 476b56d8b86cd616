#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <adapter/file_problems.hpp>
#include <adapter/fuse.hpp>
#include <adapter/lora_file.hpp>
#include <adapter/lora_stated.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>
#include <weights/convert.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace trainer::adapter {
namespace {

/// One layer as the file has it: fused, and under the file's name.
struct Pair {
  LoraTarget target;
  at::Tensor down, up;
  std::optional<double> alpha;
  bool kohya = false, usual = true;
};

/// As it was before its scale was folded into B. A note that does not lead back to the file's bits (someone changed
/// them, or the note) is none: what the file computes is B as it stands.
LoraLayer unfolded(LoraLayer layer, double scale) {
  LoraLayer before = unfold(layer, scale);
  return at::equal(fold(before).up.to(layer.up.scalar_type()), layer.up) ? before : layer;
}

class Reader {
 public:
  Reader(const weights::TensorFile& file, const LoraFamily& family) : file_(file), family_(family), names_(family) {}

  LoraFile read() {
    for (const std::string& name : file_.names()) collect(name);
    for (const auto& [name, pair] : pairs_) check(name, pair);
    if (pairs_.empty() && !other_.empty()) refuse_other();
    if (pairs_.empty()) problems_.add("it holds no pair of LoRA matrices");
    problems_.throw_if_any(file_.path().string() + ": not a LoRA for " + family_.name + ":", "LORA_KEYS");
    LoraFile lora{{}, format(), {}, stated_step(file_.metadata())};
    add_layers(lora);
    return lora;
  }

 private:
  [[noreturn]] void refuse_other() const {
    throw Error(ExitCode::bad_input,
                file_.path().string() + ": belongs to a " + other_ +
                    "; where no adapter plugin lists its tensors, only LoRA is read. To draw with what a run trained "
                    "otherwise let the run do it: sample.prompts "
                    "in its recipe",
                "LORA_KEYS");
  }

  void collect(const std::string& name) {
    const std::optional<LoraKey> key = parse_lora_key(name);
    if (const std::string other = other_adapter(name); !other.empty()) {
      other_ = other;
      return problems_.add(quote_name(name) + " belongs to a " + other + ", which is not read");
    }
    if (!key) return problems_.add(quote_name(name) + " is no part of a LoRA");
    const std::optional<LoraTarget> target = names_.resolve(key->stem);
    if (!target)
      return problems_.add(quote_name(name) + " belongs to no layer of " + family_.name + names_.suggestion(key->stem));
    Pair& pair = pairs_[target->name];
    const bool known = pair.down.defined() || pair.up.defined() || pair.alpha;
    if (known && pair.target.prefix != target->prefix)
      return problems_.add(quote_name(name) + " stands beside the same layer under the prefix " +
                           quote_name(pair.target.prefix));
    pair.target = *target;
    pair.kohya = pair.kohya || key->kohya;
    pair.usual = pair.usual && key->usual;
    if (key->part == LoraPart::alpha) return read_alpha(name, pair);
    at::Tensor& place = key->part == LoraPart::down ? pair.down : pair.up;
    if (place.defined()) return problems_.add(quote_name(name) + " is there twice, spelled differently");
    place = file_.read(name);
    if (!at::isFloatingType(place.scalar_type()))
      problems_.add(quote_name(name) + " does not hold numbers with a point");
    if (!weights::all_finite(place))
      throw Error(ExitCode::bad_input, file_.path().string() + ": " + quote_name(name) + " holds NaN or infinity",
                  "LORA_NONFINITE");
    // LibTorch computes nothing with 8 bits, not even whether two tensors are equal; in fp32 every value stays.
    if (at::isFloat8Type(place.scalar_type())) place = place.to(at::kFloat);
  }

  void read_alpha(const std::string& name, Pair& pair) {
    const at::Tensor tensor = file_.read(name);
    const double alpha = tensor.numel() == 1 ? tensor.reshape({}).to(at::kDouble).item<double>() : 0;
    if (!std::isfinite(alpha) || alpha <= 0)
      return problems_.add(quote_name(name) + " is no positive number, as an alpha must be");
    pair.alpha = alpha;
  }

  void check(const std::string& name, const Pair& pair) {
    if (!pair.down.defined() || !pair.up.defined())
      return problems_.add(quote_name(name) + ": only one of its two matrices is there");
    const auto parts = static_cast<int64_t>(pair.target.halves_swapped ? 2 : pair.target.layers.size());
    if (pair.down.dim() != 2 || pair.up.dim() != 2 || pair.down.size(0) != pair.up.size(1) || pair.down.numel() == 0 ||
        pair.up.numel() == 0 || pair.up.size(0) % parts != 0)
      problems_.add(quote_name(name) + ": " + shape_text(pair.down.sizes()) + " and " + shape_text(pair.up.sizes()) +
                    " are no low-rank pair of this layer");
  }

  [[nodiscard]] bool is(const LoraFormat& format) const {
    return std::all_of(pairs_.begin(), pairs_.end(), [&](const auto& item) {
      const Pair& pair = item.second;
      if (pair.target.prefix != format.prefix || pair.kohya != (format.keys == LoraKeys::kohya) || !pair.usual)
        return false;
      if (!format.aliased) return pair.target.layers.size() == 1 && pair.target.layers.front() == pair.target.name;
      const auto alias = names_.alias_of(pair.target.layers.front());
      return alias && alias->name == pair.target.name;
    });
  }

  [[nodiscard]] std::string format() const {
    for (const LoraFormat& format : family_.formats)
      if (is(format)) return format.name;
    return "other";
  }

  void add_layers(LoraFile& lora) {
    const StatedScales stated(file_.path(), file_.metadata(), pairs_.begin()->second.target.prefix);
    const std::optional<double> folded = stated_folded_scale(file_.path(), file_.metadata());
    bool tensors = false, taken_out = false;
    FileProblems twice;
    std::set<std::string> seen;
    for (const auto& [name, pair] : pairs_) {
      LoraLayer layer{pair.target.layers.front(), pair.down, pair.up, 0};
      tensors = tensors || pair.alpha;
      if (pair.alpha) stated.require_same(pair.target, layer.rank(), *pair.alpha);
      layer.alpha = pair.alpha ? *pair.alpha : stated.alpha(pair.target, layer.rank());
      if (folded && layer.scale() == 1) {
        layer = unfolded(std::move(layer), *folded);
        taken_out = taken_out || layer.scale() != 1;
      }
      if (pair.target.halves_swapped) layer = swap_halves(std::move(layer));
      for (LoraLayer& part : split(layer, pair.target.layers)) {
        if (!seen.insert(part.layer).second) twice.add(quote_name(part.layer) + " is there fused and alone");
        lora.layers.push_back(std::move(part));
      }
    }
    twice.throw_if_any(file_.path().string() + ": layers are there twice:", "LORA_KEYS");
    std::sort(lora.layers.begin(), lora.layers.end(),
              [](const LoraLayer& a, const LoraLayer& b) { return a.layer < b.layer; });
    lora.alpha = tensors                    ? "stored for each layer"
                 : !stated.source().empty() ? stated.source()
                 : taken_out                ? "folded into B (it was " + std::to_string(*folded) + " times the rank)"
                                            : "none stored: readers apply alpha = rank";
  }

  const weights::TensorFile& file_;
  const LoraFamily& family_;
  LayerNames names_;
  std::map<std::string, Pair> pairs_;
  std::string other_;  ///< kind of an adapter that is no LoRA, if there is any
  FileProblems problems_;
};

}  // namespace

LoraFamily plain_family(const std::string& name) {
  LoraFamily family;
  family.name = name;
  family.formats.push_back({.name = "canonical", .readers = "trainer", .prefix = ""});
  return family;
}

LoraFile read_lora(const weights::TensorFile& file, const LoraFamily& family) { return Reader(file, family).read(); }

LoraFile read_lora(const std::filesystem::path& file, const LoraFamily& family) {
  return read_lora(weights::TensorFile(file, {weights::Profile::compat, weights::ReadMode::copy}), family);
}

void check_layers(const std::string& where, std::span<const LoraLayer> layers, std::span<const Linear> model) {
  std::map<std::string, const LinearState*> known;
  std::vector<std::string> names;
  for (const Linear& linear : model) {
    known.emplace(linear.name(), &linear.state());
    names.push_back(linear.name());
  }
  FileProblems problems;
  for (const LoraLayer& layer : layers) {
    const auto it = known.find(layer.layer);
    if (it == known.end()) {
      problems.add("the model has no layer " + quote_name(layer.layer) + did_you_mean(layer.layer, names));
    } else if (layer.down.size(1) != it->second->in || layer.up.size(0) != it->second->out) {
      const std::vector<int64_t> theirs{layer.up.size(0), layer.down.size(1)}, ours{it->second->out, it->second->in};
      problems.add(quote_name(layer.layer) + ": made for a layer of " + shape_text(theirs) + ", the model's is " +
                   shape_text(ours));
    }
  }
  problems.throw_if_any(where + ": this LoRA is for another model:", "LORA_LAYERS");
}

}  // namespace trainer::adapter
