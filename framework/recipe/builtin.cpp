#include <recipe/schema.hpp>

namespace trainer::recipe {
namespace {

constexpr const char* kFlowMatching = R"toml(
name = "flow_matching"
kind = "objective"
summary = "Rectified flow: the model predicts noise minus picture at a random mix of the two."

[[option]]
key = "timesteps.distribution"
type = "string"
default = "logit_normal"
choices = ["uniform", "logit_normal", "mode"]
help = "Density of the noise level sigma, 1 being pure noise, before the shift (names as in Esser et al. 2024)."

[[option]]
key = "timesteps.mean"
type = "number"
default = 0.0
min = -20
max = 20
help = "logit_normal: mean of the normal number under the sigmoid; above 0 is noisier."

[[option]]
key = "timesteps.std"
type = "number"
default = 1.0
above = 0
max = 20
help = "logit_normal: standard deviation of the normal number under the sigmoid."

[[option]]
key = "timesteps.scale"
type = "number"
default = 1.29
min = -1
max = 1.75
help = "mode: strength; 0 is uniform."

[[option]]
key = "timesteps.shift"
type = "number|string"
default = "resolution"
choices = ["none", "resolution"]
above = 0
max = 1000
help = "Moves sigma towards noise, s * sigma / (1 + (s - 1) * sigma): a number is s itself, \"resolution\" takes s from the model for the number of picture tokens."

[[option]]
key = "timesteps.uniform_fraction"
type = "number"
default = 0.0
min = 0
max = 1
help = "Share of samples whose sigma is uniform and not shifted, so that no noise level is starved."

[[option]]
key = "timesteps.grid"
type = "integer"
default = 0
min = 0
max = 1000000
help = "Only the levels 1/grid, 2/grid, ..., 1 are drawn, as diffusers does with 1000; 0: any level."

[[option]]
key = "guidance"
type = "number"
default = 1.0
min = 0
max = 100
help = "Guidance input of a guidance-distilled model while it is trained; models without that input ignore it."

[[option]]
key = "weighting"
type = "string"
default = "none"
choices = ["none", "sigma_sqrt", "cosmap", "gaussian"]
help = "Factor of a sample's loss: sigma_sqrt is 1 / sigma^2, cosmap is 2 / (pi (1 - 2 sigma + 2 sigma^2)), gaussian is DiffSynth's bell around 1/2."

[[option]]
key = "loss"
type = "string"
default = "mse"
choices = ["mse"]
help = "Distance between prediction and target, averaged over all elements in fp32."
)toml";

constexpr const char* kLora = R"toml(
name = "lora"
kind = "adapter"
summary = "Low-rank adapters beside linear layers (LoRA): y = W x + alpha / rank * B A x."

[[option]]
key = "rank"
type = "integer"
default_text = "32; with init = file that of the file"
min = 1
max = 65536
help = "Rank of the adapters: their size grows with it."

[[option]]
key = "alpha"
type = "number"
same_as = "rank"
above = 0
help = "Scale of the adapters, divided by rank. The default makes the factor 1; some trainers default to alpha = 1, so carry it over with their learning rate."

[[option]]
key = "targets"
type = "string|strings"
default = "default"
choices = ["default", "all"]
min_items = 1
help = "Layers that get an adapter: the model's default list, all linear layers of its blocks, or a list of layer names with * as wildcard. A pattern that matches nothing is an error."

[[option]]
key = "init"
type = "string"
default = "kaiming"
choices = ["kaiming", "gaussian", "file"]
help = "First values of A, B being zero: kaiming is peft's default, gaussian that of diffusers' scripts. file: A and B of the LoRA in path, with its layers, ranks and alphas."

[[option]]
key = "dtype"
type = "string"
default = "fp32"
choices = ["fp32"]
help = "Number format of the trained adapter weights."
)toml";

}  // namespace

const std::vector<ComponentSchema>& builtin_components() {
  static const std::vector<ComponentSchema> all = {
      parse_component_schema(kFlowMatching, "built-in flow_matching"),
      parse_component_schema(kLora, "built-in lora"),
  };
  return all;
}

}  // namespace trainer::recipe
