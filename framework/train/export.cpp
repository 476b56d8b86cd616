#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <nlohmann/json.hpp>
#include <train/export.hpp>
#include <trainer/sdk/names.hpp>
#include <weights/convert.hpp>
#include <weights/tensor_file.hpp>
#include <weights/write.hpp>

#include <map>
#include <optional>

namespace trainer::train {
namespace {

constexpr std::string_view kDown = ".lora_A.weight", kUp = ".lora_B.weight";

using Pairs = std::vector<std::pair<std::string, at::Tensor>>;

Pairs adapter_tensors(const LoadedModel& loaded) {
  Pairs tensors;
  for (const Linear& layer : loaded.adapted)
    for (auto& [name, tensor] : loaded.adapter->export_layer(layer.state()))
      tensors.emplace_back(loaded.model->export_prefix() + name, tensor);
  return tensors;
}

Pairs model_tensors(const LoadedModel& loaded) {
  Pairs tensors;
  for (Parameter* parameter : loaded.trained) {
    // The files that other programs read have the dtype of the original.
    const TensorInfo* stored = loaded.source->find(parameter->name());
    const at::ScalarType dtype = stored != nullptr ? stored->dtype : at::kFloat;
    tensors.emplace_back(parameter->name(), parameter->value().detach().to(dtype));
  }
  return tensors;
}

/// A low-rank pair as it stands in a file; alpha is folded in.
class ExportedLora final : public LinearAdapter {
 public:
  ExportedLora(at::Tensor down, at::Tensor up) : down_(std::move(down)), up_(std::move(up)) {}
  at::Tensor apply(const at::Tensor& x, const at::Tensor& y) const override {
    const at::Tensor low = at::mm(x.to(down_.scalar_type()), down_.t());
    return at::addmm(y.to(down_.scalar_type()), low, up_.t()).to(y.scalar_type());
  }
  std::vector<Parameter*> parameters() override { return {}; }

 private:
  at::Tensor down_, up_;
};

struct Pair {
  at::Tensor down, up;
};

/// Alpha as peft's metadata in the file states it (diffusers writes it); ours need none, alpha is in B. Absent: the
/// rank.
std::optional<double> stated_alpha(const weights::TensorFile& file, const std::string& prefix) {
  const auto it = file.metadata().find("lora_adapter_metadata");
  if (it == file.metadata().end()) return {};
  const std::string where = file.path().string() + ": ";
  const auto json = nlohmann::json::parse(it->second, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw Error(ExitCode::bad_input, where + "its lora_adapter_metadata is no JSON object");
  for (const char* key : {"alpha_pattern", "use_rslora", "use_dora"}) {
    const auto value = json.find(prefix + key);
    if (value != json.end() && !value->empty() && *value != false)
      throw Error(ExitCode::bad_input, where + "it was made with peft's " + key + ", which is not read");
  }
  const auto alpha = json.find(prefix + "lora_alpha");
  if (alpha == json.end() || !alpha->is_number()) return {};
  return alpha->get<double>();
}

std::map<std::string, Pair> read_pairs(const weights::TensorFile& file, const std::string& prefix,
                                       std::string& problems) {
  std::map<std::string, Pair> pairs;
  for (const std::string& name : file.names()) {
    std::string_view layer = name;
    if (layer.starts_with(prefix)) layer.remove_prefix(prefix.size());
    const bool down = layer.ends_with(kDown), up = layer.ends_with(kUp);
    if (!down && !up) {
      problems += "\n  \"" + name + "\" is no lora_A or lora_B tensor";
      continue;
    }
    layer.remove_suffix(down ? kDown.size() : kUp.size());
    at::Tensor tensor = file.read(name).to(at::kFloat);
    (down ? pairs[std::string(layer)].down : pairs[std::string(layer)].up) = std::move(tensor);
  }
  return pairs;
}

}  // namespace

std::filesystem::path export_trained(const LoadedModel& loaded, const std::filesystem::path& file, int64_t step) {
  const Pairs tensors = loaded.adapter ? adapter_tensors(loaded) : model_tensors(loaded);
  for (const auto& [name, tensor] : tensors)
    if (!weights::all_finite(tensor))
      throw Error(ExitCode::non_finite, "\"" + name + "\" holds NaN or infinity: nothing is exported");
  weights::write_safetensors(file, tensors,
                             {{"format", "pt"}, {"software", "trainer"}, {"step", std::to_string(step)}});
  return file;
}

void apply_exported(LoadedModel& loaded, const std::filesystem::path& path) {
  const weights::TensorFile file(path, {weights::Profile::compat, weights::ReadMode::copy});
  std::map<std::string, Linear> layers;
  std::vector<std::string> names;
  for (const Linear& layer : loaded.inventory.linears) {
    layers.emplace(layer.name(), layer);
    names.push_back(layer.name());
  }
  std::string problems;
  const std::optional<double> alpha = stated_alpha(file, loaded.model->export_prefix());
  std::map<std::string, Pair> pairs = read_pairs(file, loaded.model->export_prefix(), problems);
  for (auto& [name, pair] : pairs) {
    const auto it = layers.find(name);
    if (it == layers.end()) {
      problems += "\n  no layer \"" + name + "\"" + did_you_mean(name, names);
      continue;
    }
    LinearState& state = it->second.state();
    if (!pair.down.defined() || !pair.up.defined() || pair.down.dim() != 2 || pair.up.dim() != 2 ||
        pair.down.size(1) != state.in || pair.up.size(0) != state.out || pair.down.size(0) != pair.up.size(1)) {
      problems += "\n  \"" + name + "\": lora_A and lora_B are not both there, or do not fit the layer";
      continue;
    }
    if (!weights::all_finite(pair.down) || !weights::all_finite(pair.up)) {
      problems += "\n  \"" + name + "\": holds NaN or infinity";
      continue;
    }
    if (alpha) pair.up = pair.up * (*alpha / static_cast<double>(pair.down.size(0)));
    const at::Device device = loaded.devices.of(name);
    state.adapter = std::make_unique<ExportedLora>(pair.down.to(device), pair.up.to(device));
  }
  constexpr std::size_t kShown = 2000;  // of a file that is something else altogether, the first lines are enough
  if (problems.size() > kShown) problems = problems.substr(0, problems.rfind('\n', kShown)) + "\n  and more";
  if (!problems.empty() || pairs.empty())
    throw Error(ExitCode::bad_input,
                path.string() +
                    ": not a LoRA for this model:" + (pairs.empty() && problems.empty() ? " it is empty" : problems),
                "MODEL_KEYS");
}

}  // namespace trainer::train
