#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <base/hash.hpp>
#include <execution/keyed_random.hpp>
#include <prove/random_batches.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <sstream>
#include <utility>

namespace trainer::prove {
namespace {

std::string text_of(const std::string& name, const std::vector<int64_t>& shape) {
  std::ostringstream text;
  text << name << ' ' << at::IntArrayRef(shape);
  return text.str();
}

KeyedRng stream_of(uint64_t seed, const std::string& name, uint64_t key) {
  return {seed ^ std::stoull(xxh128(name).substr(0, 16), nullptr, 16), RngStream::synthetic, 1, key};
}

at::Tensor integers(KeyedRng rng, const std::vector<int64_t>& shape, int64_t below) {
  at::Tensor data = at::empty(shape, at::kLong);
  auto* const first = data.mutable_data_ptr<int64_t>();
  std::generate(first, first + data.numel(),
                [&] { return static_cast<int64_t>(rng.below(static_cast<uint64_t>(below))); });
  return data;
}

}  // namespace

std::string SampleShapes::text() const {
  std::string text = latents.empty() ? "" : text_of("latents", latents);
  for (const auto& [name, input] : conditioning) text += (text.empty() ? "" : ", ") + text_of(name, input.shape);
  return text;
}

SampleShapes shapes_of(const Model& model, const Objective& objective, const Sizes& sizes) {
  SampleShapes shapes;
  if (const DiffusionTraits* traits = model.diffusion(); traits != nullptr)
    shapes.latents = {traits->latent_channels, 1, sizes.height, sizes.width};
  const std::vector<std::string> provided = objective.provides();
  for (const InputSpec& input : model.inputs()) {
    if (!input.required || std::find(provided.begin(), provided.end(), input.name) != provided.end()) continue;
    if (!input.shape)
      throw Error(ExitCode::plugin_rejected, "the model needs the input \"" + input.name + "\" (" + input.meaning +
                                                 ") and does not say its shape; set InputSpec::shape in the plugin");
    SampleShapes::Input made{*input.shape, input.below};
    std::replace(made.shape.begin(), made.shape.end(), int64_t{-1}, sizes.length);
    shapes.conditioning[input.name] = std::move(made);
  }
  return shapes;
}

RandomBatches::RandomBatches(SampleShapes shapes, int64_t samples, int64_t micro_batches, at::Device device,
                             uint64_t seed)
    : shapes_(std::move(shapes)), samples_(samples), micro_batches_(micro_batches), device_(device), seed_(seed) {}

Batch RandomBatches::batch(int64_t step, int64_t micro) {
  if (micro == fail_at_micro) {
    fail_at_micro = -1;
    throw Interruption("no sample");
  }
  Batch batch;
  batch.step = static_cast<uint64_t>(step);
  std::vector<at::Tensor> latents;
  std::map<std::string, std::vector<at::Tensor>> rows;
  const int64_t size = samples_ / micro_batches_;
  for (int64_t i = micro * size; i < (micro + 1) * size; ++i) {
    const auto key = static_cast<uint64_t>(step * samples_ + i);
    batch.sample_keys.push_back(key);
    if (!shapes_.latents.empty())
      latents.push_back(execution::keyed_normal(stream_of(seed_, "latents", key), shapes_.latents));
    for (const auto& [name, input] : shapes_.conditioning) {
      const KeyedRng rng = stream_of(seed_, name, key);
      rows[name].push_back(input.below > 0 ? integers(rng, input.shape, input.below)
                                           : execution::keyed_normal(rng, input.shape));
    }
  }
  if (!latents.empty()) batch.latents = at::stack(latents).to(device_);
  for (const auto& [name, list] : rows) batch.conditioning[name] = at::stack(list).to(device_);
  return batch;
}

}  // namespace trainer::prove
