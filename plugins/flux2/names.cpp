/// @file Names and shapes, as in diffusers' Flux2Transformer2DModel.
#include "names.hpp"

#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <numeric>

namespace trainer::flux2 {
namespace {

constexpr std::size_t kShown = 8;  // of each kind of problem in a message

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

void add_double_block(Shapes& shapes, const std::string& block, const Config& c) {
  const int64_t d = c.hidden();
  for (const char* name : {"to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out"})
    shapes[block + "attn." + name + ".weight"] = {d, d};
  for (const char* name : {"norm_q", "norm_k", "norm_added_q", "norm_added_k"})
    shapes[block + "attn." + name + ".weight"] = {c.head_dim};
  for (const char* name : {"ff", "ff_context"}) {
    shapes[block + name + ".linear_in.weight"] = {2 * c.mlp_hidden, d};
    shapes[block + name + ".linear_out.weight"] = {d, c.mlp_hidden};
  }
}

void add_single_block(Shapes& shapes, const std::string& block, const Config& c) {
  const int64_t d = c.hidden();
  shapes[block + "attn.to_qkv_mlp_proj.weight"] = {3 * d + 2 * c.mlp_hidden, d};
  shapes[block + "attn.to_out.weight"] = {d, d + c.mlp_hidden};
  for (const char* name : {"norm_q", "norm_k"}) shapes[block + "attn." + name + ".weight"] = {c.head_dim};
}

std::string list(const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text = "\n  " + title + " (" + std::to_string(lines.size()) + "):";
  for (std::size_t i = 0; i < std::min(kShown, lines.size()); ++i) text += "\n    " + lines[i];
  if (lines.size() > kShown) text += "\n    and " + std::to_string(lines.size() - kShown) + " more";
  return text;
}

}  // namespace

Shapes expected_tensors(const Config& c) {
  const int64_t d = c.hidden();
  Shapes shapes{{"x_embedder.weight", {d, c.in_channels}},
                {"context_embedder.weight", {d, c.joint_dim}},
                {"double_stream_modulation_img.linear.weight", {6 * d, d}},
                {"double_stream_modulation_txt.linear.weight", {6 * d, d}},
                {"single_stream_modulation.linear.weight", {3 * d, d}},
                {"norm_out.linear.weight", {2 * d, d}},
                {"proj_out.weight", {c.out_channels, d}}};
  std::vector<std::string> embedders{"timestep_embedder"};
  if (c.guidance) embedders.emplace_back("guidance_embedder");
  for (const std::string& name : embedders) {
    shapes["time_guidance_embed." + name + ".linear_1.weight"] = {d, c.time_channels};
    shapes["time_guidance_embed." + name + ".linear_2.weight"] = {d, d};
  }
  for (int64_t i = 0; i < c.num_layers; ++i)
    add_double_block(shapes, "transformer_blocks." + std::to_string(i) + ".", c);
  for (int64_t i = 0; i < c.num_single_layers; ++i)
    add_single_block(shapes, "single_transformer_blocks." + std::to_string(i) + ".", c);
  return shapes;
}

int64_t parameter_count(const Shapes& shapes) {
  int64_t count = 0;
  for (const auto& [name, shape] : shapes)
    count += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return count;
}

void check_tensors(const WeightSource& weights, const Shapes& expected) {
  std::vector<std::string> unexpected_names, missing_names, missing, unexpected, mis_shaped;
  for (const std::string& name : weights.names())
    if (!expected.contains(name)) unexpected_names.push_back(name);
  for (const auto& [name, shape] : expected) {
    const TensorInfo* info = weights.find(name);
    if (info == nullptr)
      missing_names.push_back(name);
    else if (info->shape != shape)
      mis_shaped.push_back(name + " is " + shape_text(info->shape) + ", should be " + shape_text(shape));
  }
  if (missing_names.empty() && unexpected_names.empty() && mis_shaped.empty()) return;
  // Edit distances of long lists against each other would take seconds and help nobody: only what is shown gets them.
  for (const std::string& name : missing_names)
    missing.push_back(name + " " + shape_text(expected.at(name)) +
                      (missing.size() < kShown ? nearest_in(name, unexpected_names) : ""));
  std::vector<std::string> all_names;
  for (const auto& [name, shape] : expected) all_names.push_back(name);
  for (const std::string& name : unexpected_names)
    unexpected.push_back(name + " " + shape_text(weights.find(name)->shape) +
                         (unexpected.size() < kShown ? nearest_in(name, all_names) : ""));
  throw Error(ExitCode::bad_input,
              weights.describe() + " does not hold the tensors of this FLUX.2 transformer" + list("missing", missing) +
                  list("unexpected", unexpected) + list("wrong shape", mis_shaped),
              "MODEL_KEYS");
}

std::string nearest_in(std::string_view name, std::span<const std::string> candidates) {
  const std::string* best = nullptr;
  std::size_t least = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t difference =
        candidate.size() > name.size() ? candidate.size() - name.size() : name.size() - candidate.size();
    if (difference >= least) continue;  // the distance is at least that
    if (const std::size_t distance = edit_distance(name, candidate); distance < least)
      least = distance, best = &candidate;
  }
  return best == nullptr ? "" : " (nearest: \"" + *best + "\")";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace trainer::flux2
