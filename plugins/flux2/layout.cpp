/// @file The table of names in both layouts, and the source that applies it. Name pairs as in diffusers'
/// scripts/convert_flux2_to_diffusers.py and in the model code of github.com/black-forest-labs/flux2.
#include "layout.hpp"

#include <ATen/ops/cat.h>
#include <c10/util/accumulate.h>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/weight_scales.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace trainer::flux2 {
namespace {

constexpr std::string_view kPrefix = "model.diffusion_model.";
using Pair = std::pair<std::string_view, std::string_view>;

constexpr std::array<Pair, 10> kGlobal{{
    {"img_in.weight", "x_embedder.weight"},
    {"txt_in.weight", "context_embedder.weight"},
    {"time_in.in_layer.weight", "time_guidance_embed.timestep_embedder.linear_1.weight"},
    {"time_in.out_layer.weight", "time_guidance_embed.timestep_embedder.linear_2.weight"},
    {"guidance_in.in_layer.weight", "time_guidance_embed.guidance_embedder.linear_1.weight"},
    {"guidance_in.out_layer.weight", "time_guidance_embed.guidance_embedder.linear_2.weight"},
    {"double_stream_modulation_img.lin.weight", "double_stream_modulation_img.linear.weight"},
    {"double_stream_modulation_txt.lin.weight", "double_stream_modulation_txt.linear.weight"},
    {"single_stream_modulation.lin.weight", "single_stream_modulation.linear.weight"},
    {"final_layer.linear.weight", "proj_out.weight"},
}};
constexpr std::string_view kFinalModulation = "final_layer.adaLN_modulation.1.weight";

constexpr std::array<Pair, 10> kDouble{{
    {"img_attn.norm.query_norm.weight", "attn.norm_q.weight"},
    {"img_attn.norm.key_norm.weight", "attn.norm_k.weight"},
    {"txt_attn.norm.query_norm.weight", "attn.norm_added_q.weight"},
    {"txt_attn.norm.key_norm.weight", "attn.norm_added_k.weight"},
    {"img_attn.proj.weight", "attn.to_out.0.weight"},
    {"txt_attn.proj.weight", "attn.to_add_out.weight"},
    {"img_mlp.0.weight", "ff.linear_in.weight"},
    {"img_mlp.2.weight", "ff.linear_out.weight"},
    {"txt_mlp.0.weight", "ff_context.linear_in.weight"},
    {"txt_mlp.2.weight", "ff_context.linear_out.weight"},
}};
constexpr std::array<Pair, 4> kSingle{{
    {"linear1.weight", "attn.to_qkv_mlp_proj.weight"},
    {"linear2.weight", "attn.to_out.weight"},
    {"norm.query_norm.weight", "attn.norm_q.weight"},
    {"norm.key_norm.weight", "attn.norm_k.weight"},
}};
constexpr std::array<std::pair<std::string_view, std::array<std::string_view, 3>>, 2> kFused{{
    {"img_attn.qkv.weight", {"attn.to_q.weight", "attn.to_k.weight", "attn.to_v.weight"}},
    {"txt_attn.qkv.weight", {"attn.add_q_proj.weight", "attn.add_k_proj.weight", "attn.add_v_proj.weight"}},
}};

/// One tensor as presented: rows [begin, begin + shape[0]) of `from`; swapped: second half of its rows, then the first.
struct Part {
  std::string from;
  int64_t begin = 0;
  bool whole = true;
  bool swapped = false;
  TensorInfo info;
};

template <typename Table>
std::string_view look_up(const Table& table, std::string_view name) {
  for (const auto& [original, canonical] : table)
    if (original == name) return canonical;
  return {};
}

/// Splits "double_blocks.3.rest" into ("3.", "rest"); both empty when `name` does not start with `stem`.
std::pair<std::string, std::string> split_block(std::string_view name, std::string_view stem) {
  if (!name.starts_with(stem)) return {};
  const std::size_t dot = name.find('.', stem.size());
  if (dot == std::string_view::npos) return {};
  return {std::string(name.substr(stem.size(), dot + 1 - stem.size())), std::string(name.substr(dot + 1))};
}

std::string norm_as_weight(const std::string& rest) {
  constexpr std::string_view kScale = "_norm.scale";
  return rest.ends_with(kScale) ? rest.substr(0, rest.size() - 5) + "weight" : rest;
}

/// "<layer>" of "<layer>.weight".
std::string canonical_layer(const std::string& weight) { return weight.substr(0, weight.rfind('.')); }

/// The canonical names that a tensor of the original layout goes to: one, or three by row thirds; none when it is in no
/// layout. swapped: its halves change places.
struct Goal {
  std::vector<std::string> names;
  bool swapped = false;
};
Goal goal_of(const std::string& bare) {
  if (bare == kFinalModulation) return {{"norm_out.linear.weight"}, true};
  if (const auto [block, rest] = split_block(bare, "double_blocks."); !block.empty()) {
    for (const auto& [fused, thirds] : kFused) {
      if (rest != fused) continue;
      Goal goal;
      for (const std::string_view third : thirds)
        goal.names.push_back("transformer_blocks." + block + std::string(third));
      return goal;
    }
    const std::string_view canonical = look_up(kDouble, norm_as_weight(rest));
    if (canonical.empty()) return {};
    return {{"transformer_blocks." + block + std::string(canonical)}};
  }
  if (const auto [block, rest] = split_block(bare, "single_blocks."); !block.empty()) {
    const std::string_view canonical = look_up(kSingle, norm_as_weight(rest));
    if (canonical.empty()) return {};
    return {{"single_transformer_blocks." + block + std::string(canonical)}};
  }
  const std::string_view canonical = look_up(kGlobal, bare);
  if (canonical.empty()) return {};
  return {{std::string(canonical)}};
}

class MappedWeights final : public WeightSource {
 public:
  MappedWeights(std::shared_ptr<WeightSource> file, std::string_view prefix, bool original)
      : file_(std::move(file)), original_(original) {
    for (const std::string& name : file_->names()) {
      if (!prefix.empty() && !name.starts_with(prefix)) {
        if (!other_component(name)) add(name, {.from = name, .info = *file_->find(name)});
      } else if (const std::string bare = name.substr(prefix.size()); original) {
        map(name, bare);
      } else {
        add(bare, {.from = name, .info = *file_->find(name)});
      }
    }
  }

  [[nodiscard]] std::vector<std::string> names() const override {
    std::vector<std::string> list;
    for (const auto& [name, part] : parts_) list.push_back(name);
    return list;
  }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override {
    const auto it = parts_.find(name);
    return it == parts_.end() ? nullptr : &it->second.info;
  }
  [[nodiscard]] at::Tensor read(std::string_view name) override {
    const Part& part = get(name);
    return part.whole ? file_->read(part.from) : rows(part, 0, part.info.shape[0]);
  }
  [[nodiscard]] at::Tensor read_rows(std::string_view name, int64_t begin, int64_t end) override {
    return rows(get(name), begin, end);
  }
  [[nodiscard]] std::string describe() const override {
    return file_->describe() + (original_ ? " (original layout, shown under diffusers' names)" : "");
  }
  [[nodiscard]] std::string identity() const override { return file_->identity(); }

 private:
  /// In all-in-one files of other programs.
  static bool other_component(std::string_view name) {
    return name.starts_with("first_stage_model.") || name.starts_with("vae.") || name.starts_with("text_encoders.") ||
           name.starts_with("cond_stage_model.");
  }
  void add(std::string name, Part part) {
    part.info.name = name;
    const auto [it, fresh] = parts_.try_emplace(std::move(name), std::move(part));
    if (!fresh)
      throw Error(ExitCode::bad_input,
                  file_->describe() + ": tensors \"" + it->second.from + "\" and \"" + part.from +
                      "\" are the same one (\"" + it->first + "\") in two layouts; remove one",
                  "MODEL_KEYS");
  }
  void map(const std::string& name, const std::string& bare) {
    const TensorInfo& info = *file_->find(name);
    const std::string layer(companion_layer(bare));
    const Goal goal = goal_of(layer.empty() ? bare : layer + ".weight");
    const int64_t parts = goal.swapped ? 2 : static_cast<int64_t>(goal.names.size());
    const bool cut = parts > 1 && (layer.empty() || goes_by_rows(name, info));
    if (goal.names.empty() || (cut && !divides(name, info, parts))) return add(name, {.from = name, .info = info});
    for (std::size_t i = 0; i < goal.names.size(); ++i) {
      Part part{.from = name, .whole = !cut, .swapped = cut && goal.swapped, .info = info};
      if (cut && !goal.swapped) {
        part.info.shape[0] /= parts;
        part.begin = static_cast<int64_t>(i) * part.info.shape[0];
      }
      add(layer.empty() ? goal.names[i] : canonical_layer(goal.names[i]) + bare.substr(layer.size()), std::move(part));
    }
  }
  /// Scales of rows are cut as the rows are; one scale of a whole weight, and notes, are repeated.
  static bool goes_by_rows(std::string_view name, const TensorInfo& info) {
    return name.find("scale") != std::string_view::npos && c10::multiply_integers(info.shape) > 1;
  }
  /// Whether rows can be cut into equal parts: a matrix, or scales one a row or one for 128 rows of a matrix.
  bool divides(const std::string& name, const TensorInfo& info, int64_t parts) const {
    if (info.shape.empty() || info.shape[0] % parts != 0) return false;
    const std::string layer(companion_layer(name));
    if (layer.empty()) return info.shape.size() == 2;
    const TensorInfo* weight = file_->find(layer + ".weight");
    return weight != nullptr && !weight->shape.empty() &&
           (info.shape[0] == weight->shape[0] ||
            (weight->shape[0] % 128 == 0 && info.shape[0] == weight->shape[0] / 128));
  }
  const Part& get(std::string_view name) const {
    const auto it = parts_.find(name);
    if (it == parts_.end())
      throw Error(ExitCode::bad_input, describe() + " has no tensor \"" + std::string(name) + "\"", "MODEL_KEYS");
    return it->second;
  }
  at::Tensor rows(const Part& part, int64_t begin, int64_t end) const {
    if (!part.swapped) return file_->read_rows(part.from, part.begin + begin, part.begin + end);
    const int64_t half = part.info.shape[0] / 2;
    if (end <= half) return file_->read_rows(part.from, half + begin, half + end);
    if (begin >= half) return file_->read_rows(part.from, begin - half, end - half);
    return at::cat({file_->read_rows(part.from, half + begin, 2 * half), file_->read_rows(part.from, 0, end - half)});
  }

  std::shared_ptr<WeightSource> file_;
  bool original_;
  std::map<std::string, Part, std::less<>> parts_;
};

}  // namespace

std::vector<LayerAlias> layer_aliases() {
  std::vector<LayerAlias> aliases;
  const auto add = [&](std::string_view stem, std::string_view canonical_stem, std::string_view name,
                       std::initializer_list<std::string_view> layers) {
    if (name.find("norm") != std::string_view::npos) return;  // a scale, no layer
    LayerAlias& alias = aliases.emplace_back();
    alias.name = canonical_layer(std::string(stem) + std::string(name));
    for (const std::string_view layer : layers)
      alias.layers.push_back(canonical_layer(std::string(canonical_stem) + std::string(layer)));
  };
  for (const auto& [name, layers] : kFused)
    add("double_blocks.*.", "transformer_blocks.*.", name, {layers[0], layers[1], layers[2]});
  for (const auto& [name, layer] : kDouble) add("double_blocks.*.", "transformer_blocks.*.", name, {layer});
  for (const auto& [name, layer] : kSingle) add("single_blocks.*.", "single_transformer_blocks.*.", name, {layer});
  for (const auto& [name, layer] : kGlobal) add("", "", name, {layer});
  add("", "", kFinalModulation, {"norm_out.linear.weight"});
  aliases.back().halves_swapped = true;
  return aliases;
}

std::shared_ptr<WeightSource> map_weights(std::shared_ptr<WeightSource> file) {
  const std::vector<std::string> names = file->names();
  const bool prefixed =
      std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.starts_with(kPrefix); });
  const std::string_view prefix = prefixed ? kPrefix : std::string_view();
  const bool original = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    const std::string_view bare = std::string_view(name).substr(name.starts_with(prefix) ? prefix.size() : 0);
    return bare.starts_with("double_blocks.") || bare.starts_with("single_blocks.") || bare == "img_in.weight";
  });
  if (!prefixed && !original) return file;
  return std::make_shared<MappedWeights>(std::move(file), prefix, original);
}

}  // namespace trainer::flux2
