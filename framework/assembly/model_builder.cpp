#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>
#include <assembly/model_builder.hpp>
#include <trainer/sdk/names.hpp>
#include <trainer/sdk/weight_scales.hpp>

#include <sstream>

namespace trainer::assembly {
namespace {

std::string text_of(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  text << at::IntArrayRef(shape);
  return text.str();
}

}  // namespace

void refuse_packed_training(const BuildOptions& options) {
  if (options.trained && options.format != nullptr)
    throw Error(ExitCode::bad_recipe,
                "memory.strategies: a strategy packs the weights, but without [adapter] they are "
                "trained; add an adapter or leave the strategy out");
}

SourceBuilder::SourceBuilder(WeightSource& source, BuildOptions options)
    : source_(source), options_(std::move(options)) {}

void SourceBuilder::require_shape(const std::string& name, const std::vector<int64_t>& shape) const {
  const TensorInfo* info = source_.find(name);
  if (info == nullptr)
    throw Error(ExitCode::bad_input,
                source_.describe() + ": tensor \"" + name + "\" is missing" + did_you_mean(name, source_.names()),
                "MODEL_KEYS");
  if (info->shape != shape)
    throw Error(ExitCode::bad_input,
                source_.describe() + ": tensor \"" + name + "\" has shape " + text_of(info->shape) +
                    ", the model needs " + text_of(shape),
                "MODEL_KEYS");
}

void SourceBuilder::refuse_scaled(const std::string& name) const {
  const std::vector<std::string> scales = scales_of(source_, name);
  // When only headers are read no format is asked: it may be one that knows the scales.
  if (scales.empty() || (options_.headers_only && options_.format != nullptr && !trains(name))) return;
  throw Error(ExitCode::bad_input,
              source_.describe() + ": tensor \"" + name + "\" is packed, with scales in \"" + scales.front() +
                  "\"; frozen layers can use it with memory.strategies = [\"fp8_weight_only\"]; to train the weight "
                  "itself, take a file in bf16 or fp32",
              "MODEL_SCALES");
}

at::Tensor SourceBuilder::read(const std::string& name, at::Device device) {
  if (options_.before_weight) options_.before_weight();
  const at::Tensor stored = source_.read(name);
  const bool trained = trains(name);
  const at::ScalarType dtype = trained ? at::kFloat : options_.dtype;
  // A copy even where the dtype is right: the stored tensor may be a view of the mapped file.
  at::Tensor tensor = stored.to(stored.options().dtype(dtype).device(device), /*non_blocking=*/false, /*copy=*/true);
  inventory_.weight_bytes += static_cast<int64_t>(tensor.nbytes());
  return tensor.requires_grad_(trained);
}

at::Tensor SourceBuilder::load(const std::string& name, const std::vector<int64_t>& shape, at::Device device) {
  require_shape(name, shape);
  refuse_scaled(name);
  inventory_.parameter_count += c10::multiply_integers(shape);
  return options_.headers_only ? at::Tensor() : read(name, device);
}

void SourceBuilder::fill(LinearState& state) {
  const std::string weight = state.name + ".weight";
  const at::Device device = device_of(state.name);
  if (!trains(weight) && options_.format != nullptr) {
    if (options_.before_weight) options_.before_weight();
    state.frozen = options_.format->pack(state, weight, source_, options_.dtype);
  }
  if (state.frozen) ++inventory_.packed_layers;
  if (state.frozen && options_.expanded)
    state.frozen = std::make_shared<DenseWeight>(state.frozen->dense(options_.dtype));
  if (state.frozen) {
    state.frozen->to(device);
    inventory_.weight_bytes += state.frozen->bytes();
    return;
  }
  refuse_scaled(weight);
  if (trains(weight))
    state.weight->value() = read(weight, device);
  else
    state.frozen = std::make_shared<DenseWeight>(read(weight, device));
}

Linear SourceBuilder::linear(const std::string& name, int64_t in, int64_t out, bool bias) {
  auto state = std::make_shared<LinearState>();
  state->name = name;
  state->in = in;
  state->out = out;
  state->spared = spared();
  const std::string weight = name + ".weight";
  require_shape(weight, {out, in});
  inventory_.parameter_count += in * out;
  note_spared(weight);
  if (trains(weight)) state->weight = std::make_shared<Parameter>(weight, at::Tensor());
  if (options_.headers_only)
    refuse_scaled(weight);
  else
    fill(*state);
  note_spared(name + ".bias");
  if (bias) state->bias = std::make_shared<Parameter>(name + ".bias", load(name + ".bias", {out}, device_of(name)));
  inventory_.linears.emplace_back(state);
  return inventory_.linears.back();
}

void SourceBuilder::materialise(std::span<const Linear> linears, std::span<const ParameterPtr> parameters) {
  options_.headers_only = false;  // a scaled weight without its format is refused from now on
  for (const Linear& linear : linears) {
    fill(linear.state());
    if (const ParameterPtr& bias = linear.state().bias) bias->value() = read(bias->name(), device_of(linear.name()));
  }
  for (const ParameterPtr& parameter : parameters) {
    refuse_scaled(parameter->name());
    parameter->value() = read(parameter->name(), device_of(parameter->name()));
  }
}

ParameterPtr SourceBuilder::parameter(const std::string& name, const std::vector<int64_t>& shape) {
  note_spared(name);
  inventory_.parameters.push_back(std::make_shared<Parameter>(name, load(name, shape, device_of(name))));
  return inventory_.parameters.back();
}

std::vector<Parameter*> trained_parameters(const Inventory& inventory) {
  std::vector<Parameter*> list;
  for (const Linear& linear : inventory.linears)
    for (Parameter* parameter : linear.trainable()) list.push_back(parameter);
  for (const ParameterPtr& parameter : inventory.parameters)
    if (parameter->value().defined() && parameter->trainable()) list.push_back(parameter.get());
  return list;
}

}  // namespace trainer::assembly
