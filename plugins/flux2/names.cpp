/// @file Names and shapes, as in diffusers' Flux2Transformer2DModel.
#include "names.hpp"

#include <trainer/sdk/key_contract.hpp>
#include <trainer/sdk/weight_scales.hpp>

#include <numeric>

namespace trainer::flux2 {
namespace {

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

Miniature miniature() {
  Config c;
  c.in_channels = c.out_channels = 8;
  c.num_layers = c.num_single_layers = 2;
  c.heads = 2;
  c.head_dim = 16;
  c.joint_dim = 24;
  c.time_channels = 16;
  c.mlp_hidden = 96;
  c.guidance = true;
  Miniature made;
  for (const auto& [name, shape] : expected_tensors(c)) made.tensors.push_back({name, shape});
  return made;
}

int64_t parameter_count(const Shapes& shapes) {
  int64_t count = 0;
  for (const auto& [name, shape] : shapes)
    count += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return count;
}

void check_tensors(const WeightSource& weights, const Shapes& expected) {
  std::vector<NamedShape> wanted;
  for (const auto& [name, shape] : expected) wanted.push_back({name, shape});
  // Scales of weights in fp8 are the business of whoever packs weights; the host sees to it that they are not
  // forgotten.
  check_key_contract(weights.describe(), wanted, named_shapes(weights),
                     {.model = "this FLUX.2 transformer",
                      .ignored = [&](std::string_view name) { return is_fp8_companion(weights, name); }});
}

}  // namespace trainer::flux2
