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
choices = ["uniform", "logit_normal", "mode", "cosmap"]
help = "Density of the noise level sigma in [0, 1] before the shift (names as in Esser et al. 2024, Stable Diffusion 3)."

[[option]]
key = "timesteps.mean"
type = "number"
default = 0.0
min = -20
max = 20
help = "Mean of the normal number under the sigmoid of logit_normal."

[[option]]
key = "timesteps.std"
type = "number"
default = 1.0
above = 0
max = 20
help = "Standard deviation of the normal number under the sigmoid of logit_normal."

[[option]]
key = "timesteps.scale"
type = "number"
default = 1.29
min = -1
max = 1.75
help = "Strength of the mode distribution; 0 is uniform."

[[option]]
key = "timesteps.shift"
type = "number|string"
default = "resolution"
choices = ["none", "resolution"]
above = 0
max = 1000
help = "Moves sigma towards noise, s * sigma / (1 + (s - 1) * sigma): \"resolution\" takes ln s linear in the number of picture tokens (0.5 at 256, 1.15 at 4096), a number is s itself."

[[option]]
key = "timesteps.uniform_fraction"
type = "number"
default = 0.0
min = 0
max = 1
help = "Share of samples whose sigma is uniform and not shifted, so that no noise level is starved."

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
choices = ["none", "sigma_sqrt", "cosmap"]
help = "Factor of a sample's loss: sigma_sqrt is 1 / sigma^2, cosmap is 2 / (pi (1 - 2 sigma + 2 sigma^2))."

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
default = 32
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
help = "Initial values of A; B starts at zero. kaiming is peft's default, gaussian that of diffusers' scripts, file continues from an adapter file."

[[option]]
key = "file"
type = "path"
must_exist = true
default_text = "none"
help = "Adapter to continue from, with init = \"file\"."

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
