/// @file See fixture.hpp.
#include "fixture.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <trainer/sdk/recompute.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <flux2/layout.hpp>
#include <fstream>
#include <weights/model_files.hpp>

namespace trainer::flux2 {

namespace fs = std::filesystem;

std::vector<fs::path> parity_directories() {
  if (const char* given = std::getenv("TRAINER_PARITY_DIR"); given != nullptr && *given != '\0') return {given};
  const char* root = std::getenv("TRAINER_SOURCE_ROOT");
  const fs::path data = fs::path(root == nullptr ? "." : root) / "tests/data/parity";
  return {data / "tiny-dev", data / "tiny-klein"};
}

nlohmann::json read_json(const fs::path& file) {
  std::ifstream stream(file);
  return nlohmann::json::parse(stream);
}

double error_max(const at::Tensor& value, const at::Tensor& reference) {
  if (value.sizes() != reference.sizes()) return 1e30;
  const at::Tensor wide = reference.to(at::kDouble);
  const double difference = (value.detach().to(at::kDouble) - wide).abs().max().item<double>();
  return difference / wide.abs().max().item<double>();
}

double error_l2(const at::Tensor& value, const at::Tensor& reference) {
  if (value.sizes() != reference.sizes()) return 1e30;
  const at::Tensor wide = reference.to(at::kDouble);
  return ((value.detach().to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

std::shared_ptr<MemoryWeights> MemoryWeights::copy(WeightSource& source) {
  auto weights = std::make_shared<MemoryWeights>();
  for (const std::string& name : source.names()) weights->set(name, source.read(name).clone());
  return weights;
}
void MemoryWeights::set(const std::string& name, at::Tensor tensor) {
  infos_[name] = {name, tensor.scalar_type(), tensor.sizes().vec()};
  tensors_[name] = std::move(tensor);
}
void MemoryWeights::erase(const std::string& name) { tensors_.erase(name), infos_.erase(name); }
void MemoryWeights::rename(const std::string& from, const std::string& to) {
  const at::Tensor tensor = tensors_.at(from);
  erase(from);
  set(to, tensor);
}
std::vector<std::string> MemoryWeights::names() const {
  std::vector<std::string> list;
  for (const auto& [name, tensor] : tensors_) list.push_back(name);
  return list;
}
const TensorInfo* MemoryWeights::find(std::string_view name) const {
  const auto it = infos_.find(name);
  return it == infos_.end() ? nullptr : &it->second;
}
at::Tensor MemoryWeights::read(std::string_view name) { return tensors_.find(name)->second; }

Built build(std::shared_ptr<WeightSource> file, const std::string& config, const BuildAs& as) {
  Built built;
  built.weights = map_weights(std::move(file));
  built.builder = std::make_unique<testing::SimpleBuilder>(*built.weights, as.dtype, as.trained);
  const Options options("model", {{"round_time", Value{as.round_time}}, {"fused", Value{as.fused}}});
  built.model = std::make_unique<Flux2Model>(ModelContext{options, *built.weights, config, *built.builder});
  return built;
}

Built build(const fs::path& path, const BuildAs& as) {
  std::shared_ptr<weights::ModelFiles> files = weights::ModelFiles::open(path);
  const std::string config = files->config().value_or("");
  return build(std::move(files), config, as);
}

Trace run(Flux2Model& model, const NamedTensors& inputs, bool recompute, const Sinusoids* times) {
  Trace trace;
  trace.prologue = times == nullptr ? model.prologue(inputs) : model.embed(inputs, *times);
  trace.last = trace.prologue;
  int64_t index = 0;
  for (Block* block : model.blocks()) {
    BlockRun how;
    how.site = {block, index++, static_cast<int64_t>(model.blocks().size()), 0};
    how.options.recompute = recompute;
    trace.last.carried = run_block(*block, trace.last, how);
    trace.after.push_back(trace.last.carried);
  }
  trace.velocity = model.epilogue(trace.last);
  return trace;
}

Parity::Parity(const fs::path& directory)
    : directory_(directory), sizes_(read_json(directory / "parity.json")["sizes"]) {
  const auto files = weights::ModelFiles::open(directory / "dit.safetensors");
  for (const std::string& name : files->names()) tensors_[name] = files->read(name);
}

at::Tensor Parity::latents(const at::Tensor& tokens) const {
  return tokens.transpose(1, 2)
      .reshape({tokens.size(0), tokens.size(2), 1, sizes_["dit_grid"][0].get<int64_t>(),
                sizes_["dit_grid"][1].get<int64_t>()})
      .contiguous();
}

NamedTensors Parity::inputs(const std::string& times) const {
  NamedTensors inputs{{"latents", latents((*this)["in.hidden_states"])},
                      {"prompt_embeds", (*this)["in.encoder_hidden_states"]},
                      {"timestep", (*this)[times + "timestep"]}};
  if (has(times + "guidance")) inputs["guidance"] = (*this)[times + "guidance"];
  return inputs;
}

at::Tensor Parity::reference_frequencies() const {
  const bool guided = has("act.time_proj.guidance");  // its larger arguments show more
  const at::Tensor times = (*this)[guided ? "in.guidance" : "in.timestep"] * 1000;
  const at::Tensor waves = (*this)[guided ? "act.time_proj.guidance" : "act.time_proj.t"];
  const int64_t half = waves.size(1) / 2;
  at::Tensor frequencies = at::empty({half}, at::kFloat);
  for (int64_t i = 0; i < half; ++i) {
    const auto exponent = static_cast<float>(static_cast<float>(-std::log(10000.0)) * static_cast<float>(i)) / half;
    const auto rounded = static_cast<float>(std::exp(static_cast<double>(exponent)));
    double least = 1e30;
    for (const float candidate : {rounded, std::nextafter(rounded, 0.0F), std::nextafter(rounded, 2.0F)}) {
      double error = 0;
      for (int64_t b = 0; b < times.size(0); ++b) {
        const float angle = times[b].item<float>() * candidate;
        error = std::max({error, std::abs(std::cos(static_cast<double>(angle)) - waves[b][i].item<double>()),
                          std::abs(std::sin(static_cast<double>(angle)) - waves[b][half + i].item<double>())});
      }
      if (error < least) least = error, frequencies[i] = candidate;
    }
  }
  return frequencies;
}

Sinusoids Parity::sinusoids(const std::string& times) const {
  if (times == "in.")
    return {(*this)["act.time_proj.t"],
            has("act.time_proj.guidance") ? (*this)["act.time_proj.guidance"] : at::Tensor()};
  const at::Tensor frequencies = reference_frequencies();
  const auto encode = [&](const std::string& name) {
    if (!has(times + name)) return at::Tensor();
    const at::Tensor angles = ((*this)[times + name] * 1000).unsqueeze(1) * frequencies;
    return at::cat({angles.cos(), angles.sin()}, 1);
  };
  return {encode("timestep"), encode("guidance")};
}

std::vector<at::Tensor> Parity::references() const {
  const at::Tensor& all = (*this)["ref.in.hidden_states"];
  int64_t start = (*this)["in.hidden_states"].size(1);
  std::vector<at::Tensor> list;
  for (const auto& grid : sizes_["ref_grids"]) {
    const int64_t height = grid[0], width = grid[1];
    const at::Tensor tokens = all.narrow(1, start, height * width);
    list.push_back(tokens.transpose(1, 2).reshape({all.size(0), all.size(2), 1, height, width}));
    start += height * width;
  }
  return list;
}

}  // namespace trainer::flux2
