#include <ATen/core/grad_mode.h>
#include <base/json_depth.hpp>
#include <checkpoint/recovery.hpp>
#include <checkpoint/train_state.hpp>
#include <nlohmann/json.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <cmath>

namespace trainer::checkpoint {
namespace {

constexpr std::string_view kParameter = "param.", kOptimizer = "optim.", kEma = "average.";

/// The tensors whose names start with `prefix`, without it.
NamedTensors part(const NamedTensors& all, std::string_view prefix) {
  NamedTensors found;
  for (const auto& [name, tensor] : all)
    if (name.starts_with(prefix)) found[name.substr(prefix.size())] = tensor;
  return found;
}

constexpr int64_t kMostThreads = 1024;

[[noreturn]] void refuse(const checkpoint::Loaded& loaded, const std::string& why) {
  throw Error(ExitCode::bad_input, (loaded.folder / checkpoint::kStateName).string() + ": " + why, "CKPT_STATE");
}

/// A whole number in a range: of a fraction or one out of range nlohmann would make anything.
int64_t whole(const checkpoint::Loaded& loaded, const nlohmann::json& state, const char* key, int64_t least,
              int64_t most) {
  const auto it = state.find(key);
  const bool fits = it != state.end() && it->is_number_integer() &&
                    (!it->is_number_unsigned() || it->get<uint64_t>() <= uint64_t{INT64_MAX});
  if (fits && it->get<int64_t>() >= least && it->get<int64_t>() <= most) return it->get<int64_t>();
  refuse(loaded,
         std::string("\"") + key + "\" is no whole number of " + std::to_string(least) + " to " + std::to_string(most));
}

double number(const checkpoint::Loaded& loaded, const nlohmann::json& loss, const char* key) {
  const auto it = loss.find(key);
  if (it == loss.end() || !it->is_number() || !std::isfinite(it->get<double>()))
    refuse(loaded, std::string("\"loss.") + key + "\" is no number");
  return it->get<double>();
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
  if (nests_deeply(loaded.content.state)) refuse(loaded, "is nested deeper than this program writes");
  const nlohmann::json state = nlohmann::json::parse(loaded.content.state, nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) refuse(loaded, "is no JSON object");
  Progress progress;
  progress.step = whole(loaded, state, "step", 0, INT64_MAX);
  progress.threads = static_cast<int>(whole(loaded, state, "threads", 1, kMostThreads));
  const auto loss = state.find("loss"), recipe = state.find("recipe");
  if (loss == state.end() || !loss->is_object()) refuse(loaded, "\"loss\" is no object");
  progress.loss = {number(loaded, *loss, "smoothing"), number(loaded, *loss, "sum"), number(loaded, *loss, "weight")};
  if (recipe == state.end() || !recipe->is_string()) refuse(loaded, "\"recipe\" is no text");
  progress.recipe = recipe->get<std::string>();
  if (progress.step != loaded.manifest.step) refuse(loaded, "state and manifest name different steps");
  return progress;
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

}  // namespace trainer::checkpoint
