#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>
#include <train/artifacts/train_state.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>

namespace trainer::train {
namespace {

constexpr std::string_view kParameter = "param.", kOptimizer = "optim.", kEma = "average.";

/// The tensors whose names start with `prefix`, without it.
NamedTensors part(const NamedTensors& all, std::string_view prefix) {
  NamedTensors found;
  for (const auto& [name, tensor] : all)
    if (name.starts_with(prefix)) found[name.substr(prefix.size())] = tensor;
  return found;
}

void add(NamedTensors& all, std::string_view prefix, const NamedTensors& more) {
  for (const auto& [name, tensor] : more) all[std::string(prefix) + name] = tensor.detach();
}

}  // namespace

checkpoint::Content capture(const Live& live, const Progress& progress) {
  checkpoint::Content content;
  for (Parameter* parameter : live.trained)
    content.tensors[std::string(kParameter) + parameter->name()] = parameter->value().detach();
  add(content.tensors, kOptimizer, live.optimizer.state());
  if (live.ema != nullptr) add(content.tensors, kEma, live.ema->state());
  const nlohmann::ordered_json state{
      {"step", progress.step},
      {"threads", progress.threads},
      {"loss", {{"smoothing", progress.loss.smoothing}, {"sum", progress.loss.sum}, {"weight", progress.loss.weight}}},
      {"recipe", progress.recipe},
  };
  content.state = state.dump(1) + "\n";
  return content;
}

Progress read_progress(const checkpoint::Loaded& loaded) {
  try {
    const nlohmann::json state = nlohmann::json::parse(loaded.content.state);
    Progress progress;
    progress.step = state.at("step").get<int64_t>();
    progress.threads = state.at("threads").get<int>();
    const auto& loss = state.at("loss");
    progress.loss = {loss.at("smoothing").get<double>(), loss.at("sum").get<double>(), loss.at("weight").get<double>()};
    progress.recipe = state.at("recipe").get<std::string>();
    if (progress.step != loaded.manifest.step)
      throw Error(ExitCode::bad_input, loaded.folder.string() + ": state and manifest name different steps");
    return progress;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::bad_input, loaded.folder.string() + ": the state cannot be read: " + error.what());
  }
}

void restore(const checkpoint::Loaded& loaded, Live& live) {
  const at::NoGradGuard no_grad;
  const std::string where = loaded.folder.string();
  try {
    const NamedTensors parameters = part(loaded.content.tensors, kParameter);
    if (parameters.size() != live.trained.size())
      throw Error(ExitCode::bad_input, "it holds " + std::to_string(parameters.size()) +
                                           " trained tensors, this run has " + std::to_string(live.trained.size()));
    for (Parameter* parameter : live.trained) {
      const auto it = parameters.find(parameter->name());
      if (it == parameters.end())
        throw Error(ExitCode::bad_input, "it lacks the trained tensor \"" + parameter->name() + "\"");
      at::Tensor& value = parameter->value();
      if (it->second.sizes() != value.sizes() || it->second.scalar_type() != value.scalar_type())
        throw Error(ExitCode::bad_input, "\"" + parameter->name() + "\" has another shape or dtype than in this run");
      value.copy_(it->second);
    }
    for (const auto& [name, tensor] : loaded.content.tensors)
      if (!name.starts_with(kParameter) && !name.starts_with(kOptimizer) &&
          !(live.ema != nullptr && name.starts_with(kEma)))
        throw Error(ExitCode::bad_input, "it holds \"" + name + "\", for which this run has no place");
    live.optimizer.load_state(part(loaded.content.tensors, kOptimizer));
    if (live.ema != nullptr) live.ema->load_state(part(loaded.content.tensors, kEma));
  } catch (const Error& error) {
    throw error.context("checkpoint " + where);
  }
}

}  // namespace trainer::train
