/// @file Prologue, epilogue and description of the FLUX.2 transformer.
#include "model.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/silu.h>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>
#include <trainer/sdk/ops/fused.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "names.hpp"
#include "schedule.hpp"

namespace trainer::flux2 {
namespace {

[[noreturn]] void bad_tensor(const std::string& name, const std::string& what) {
  throw Error(ExitCode::bad_input, "input \"" + name + "\" of the FLUX.2 transformer " + what, "MODEL_INPUT");
}

/// The tensor, checked against `shape`; -1 stands for any size.
const at::Tensor& input(const NamedTensors& inputs, const std::string& name, const std::vector<int64_t>& shape) {
  const auto it = inputs.find(name);
  if (it == inputs.end() || !it->second.defined()) bad_tensor(name, "is missing");
  const at::Tensor& tensor = it->second;
  bool fits = tensor.dim() == static_cast<int64_t>(shape.size());
  for (std::size_t i = 0; fits && i < shape.size(); ++i)
    fits = shape[i] < 0 || tensor.size(static_cast<int64_t>(i)) == shape[i];
  if (!fits) bad_tensor(name, "is " + shape_text(tensor.sizes()) + ", expected " + shape_text(shape) + " (-1: any)");
  return tensor;
}

const char* published_name(const Config& c) {
  if (c.guidance && c.hidden() == 6144) return " dev";
  if (!c.guidance && c.hidden() == 4096) return " klein 9B";
  if (!c.guidance && c.hidden() == 3072) return " klein 4B";
  return "";
}

std::string description(const Config& c, int64_t parameters) {
  std::array<char, 32> size{};
  if (parameters >= 1'000'000'000)
    std::snprintf(size.data(), size.size(), "%.2f B", static_cast<double>(parameters) / 1e9);
  else
    std::snprintf(size.data(), size.size(), "%.2f M", static_cast<double>(parameters) / 1e6);
  std::string text = std::string("FLUX.2") + published_name(c);
  if (text == "FLUX.2") text += " of hidden size " + std::to_string(c.hidden());
  return text + ", " + std::to_string(c.num_layers) + " double + " + std::to_string(c.num_single_layers) +
         " single blocks, " + size.data() + " parameters, " + (c.guidance ? "" : "no ") + "guidance embedder";
}

/// Checked before anything is built, so that all faults of a file are reported at once.
Config checked_config(const ModelContext& context) {
  Config config = resolve_config(context.config, context.weights);
  check_tensors(context.weights, expected_tensors(config));
  config.fused = context.options.get_or<bool>("fused", true);
  return config;
}

}  // namespace

Flux2Model::Flux2Model(const ModelContext& context)
    : config_(checked_config(context)),
      dtype_(context.build.dtype()),
      device_(context.build.device()),
      round_time_(context.options.get_or<bool>("round_time", false)),
      rope_(config_.axes, config_.theta, device_) {
  ModelBuilder& build = context.build;
  const int64_t d = config_.hidden();
  time_ = embedder(build, "time_guidance_embed.timestep_embedder");
  if (config_.guidance) guidance_ = embedder(build, "time_guidance_embed.guidance_embedder");
  modulation_ = {build.linear("double_stream_modulation_img.linear", d, 6 * d),
                 build.linear("double_stream_modulation_txt.linear", d, 6 * d),
                 build.linear("single_stream_modulation.linear", d, 3 * d), build.linear("norm_out.linear", d, 2 * d)};
  x_embedder_ = build.linear("x_embedder", config_.in_channels, d);
  context_embedder_ = build.linear("context_embedder", config_.joint_dim, d);
  for (int64_t i = 0; i < config_.num_layers; ++i) blocks_.push_back(std::make_unique<DoubleBlock>(build, config_, i));
  for (int64_t i = 0; i < config_.num_single_layers; ++i)
    blocks_.push_back(std::make_unique<SingleBlock>(build, config_, i));
  for (const auto& block : blocks_) borrowed_.push_back(block.get());
  proj_out_ = build.linear("proj_out", d, config_.out_channels);
  traits_.latent_channels = config_.in_channels;
  traits_.guidance_embedded = config_.guidance;
  traits_.training_mu = training_mu;
  traits_.sigmas = sampling_sigmas;
  traits_.tokens = [](int64_t frames, int64_t height, int64_t width) { return frames * height * width; };
  description_ = description(config_, parameter_count(expected_tensors(config_)));
}

std::vector<InputSpec> Flux2Model::inputs() const {
  return {{"latents", "noisy latents [B, C, 1, h, w]"},
          {"timestep", "sigma [B] in [0, 1], 1 is pure noise"},
          {"prompt_embeds", "text states [B, L, J]", true, {{-1, config_.joint_dim}}},
          {"guidance", "guidance scale [B], e.g. 4", config_.guidance},
          {"reference_0", "clean reference latents [B, C, 1, h, w]; more of them: reference_1, ...", false},
          {"img_ids", "positions of image tokens [N, 4] or [B, N, 4], references included", false},
          {"txt_ids", "positions of text tokens [L, 4] or [B, L, 4]", false}};
}

std::optional<std::vector<std::string>> Flux2Model::epilogue_layers() const {
  return std::vector<std::string>{modulation_.out.name(), proj_out_.name()};
}

std::vector<std::string> Flux2Model::default_targets() const {
  return {"transformer_blocks.*.attn.to_q",
          "transformer_blocks.*.attn.to_k",
          "transformer_blocks.*.attn.to_v",
          "transformer_blocks.*.attn.to_out.0",
          "single_transformer_blocks.*.attn.to_qkv_mlp_proj",
          "single_transformer_blocks.*.attn.to_out"};
}

Flux2Model::Embedder Flux2Model::embedder(ModelBuilder& build, const std::string& name) const {
  const int64_t d = config_.hidden();
  return {build.linear(name + ".linear_1", config_.time_channels, d), build.linear(name + ".linear_2", d, d)};
}

at::Tensor Flux2Model::encode(const at::Tensor& values) const {
  // diffusers multiplies by 1000 after rounding to the model's dtype: in bf16, 0.7347 becomes 736.
  return sinusoid(values.to(device_, round_time_ ? dtype_ : at::kFloat) * 1000, config_.time_channels);
}

at::Tensor Flux2Model::mlp(const Embedder& embedder, const at::Tensor& sinusoid) const {
  return embedder.second(at::silu(embedder.first(sinusoid.to(dtype_))));
}

Sinusoids Flux2Model::sinusoids(const NamedTensors& inputs) const {
  const int64_t batch = input(inputs, "latents", {-1, -1, -1, -1, -1}).size(0);
  Sinusoids encoded{encode(input(inputs, "timestep", {batch})), {}};
  if (config_.guidance) encoded.guidance = encode(input(inputs, "guidance", {batch}));
  return encoded;
}

at::Tensor Flux2Model::pack(const NamedTensors& inputs, std::vector<at::Tensor>& ids) const {
  std::vector<at::Tensor> tokens;
  const auto append = [&](const at::Tensor& latents, int64_t t) {
    tokens.push_back(latents.to(device_, dtype_).flatten(2).transpose(1, 2));  // token index = row * width + column
    ids.push_back(image_ids(t, latents.size(3), latents.size(4), device_));
  };
  const at::Tensor& latents = input(inputs, "latents", {-1, config_.in_channels, 1, -1, -1});
  append(latents, 0);
  const auto is_reference = [](const auto& item) { return item.first.starts_with("reference_"); };
  const int64_t references = std::count_if(inputs.begin(), inputs.end(), is_reference);
  for (int64_t r = 0; r < references; ++r)  // counting them finds gaps and misspelt numbers as well
    append(input(inputs, "reference_" + std::to_string(r), {latents.size(0), config_.in_channels, 1, -1, -1}),
           10 + 10 * r);
  return at::cat(tokens, 1);
}

at::Tensor Flux2Model::rope_table(const NamedTensors& inputs, const std::vector<at::Tensor>& image, int64_t batch,
                                  int64_t text_length) const {
  const auto given_or = [&](const std::string& name, const at::Tensor& usual) {
    const auto it = inputs.find(name);
    if (it == inputs.end()) return usual.unsqueeze(0);
    if (it->second.dim() == 3) return input(inputs, name, {batch, usual.size(0), 4});
    return input(inputs, name, {usual.size(0), 4}).unsqueeze(0);
  };
  at::Tensor txt = given_or("txt_ids", text_ids(text_length, device_)), img = given_or("img_ids", at::cat(image));
  const int64_t rows = std::max(txt.size(0), img.size(0));
  return rope_.table(at::cat({txt.expand({rows, -1, -1}), img.expand({rows, -1, -1}).to(txt.device())}, 1));
}

Flow Flux2Model::embed(const NamedTensors& inputs, const Sinusoids& times) const {
  std::vector<at::Tensor> ids;
  const at::Tensor tokens = pack(inputs, ids);
  const at::Tensor& latents = inputs.find("latents")->second;
  const int64_t batch = latents.size(0);
  const at::Tensor& prompt = input(inputs, "prompt_embeds", {batch, -1, config_.joint_dim});
  const at::Tensor time = mlp(time_, times.time);
  const at::Tensor temb = config_.guidance ? time + mlp(guidance_, times.guidance) : time;
  const at::Tensor activated = at::silu(temb);
  Flow flow;
  flow.carried = {x_embedder_(tokens), context_embedder_(prompt.to(device_, dtype_))};
  flow.shared = {modulation_.img(activated), modulation_.txt(activated), modulation_.single(activated), temb,
                 rope_table(inputs, ids, batch, prompt.size(1))};
  flow.sizes = {latents.size(3), latents.size(4), prompt.size(1)};
  return flow;
}

at::Tensor Flux2Model::final_norm(const Flow& flow) const {
  // After a single block the text comes first; without any the streams are still apart. References come last.
  const int64_t start = flow.carried.size() == 2 ? 0 : flow.sizes[kTextLength];
  const at::Tensor x = flow.carried[0].narrow(1, start, flow.sizes[kHeight] * flow.sizes[kWidth]);
  const std::vector<at::Tensor> mod = modulation_.out(at::silu(flow.shared[kTemb])).unsqueeze(1).chunk(2, -1);
  return modulated_norm(x, mod[1], mod[0], config_.eps, config_.fused);  // diffusers' order is scale, shift
}

at::Tensor Flux2Model::epilogue(const Flow& flow) {
  const at::Tensor velocity = proj_out_(final_norm(flow)).transpose(1, 2);
  return velocity.unflatten(-1, {1, flow.sizes[kHeight], flow.sizes[kWidth]});
}

}  // namespace trainer::flux2
