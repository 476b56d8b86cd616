#include <cache/dataset.hpp>

#include <ATen/ops/stack.h>
#include <trainer/sdk/error.hpp>

#include <utility>

namespace trainer::cache {
namespace {

/// Tensors of one name, one a sample; equal shapes are what makes them stackable.
at::Tensor stacked(const std::vector<at::Tensor>& rows, const std::string& what) {
  for (const at::Tensor& row : rows) {
    if (row.sizes() == rows[0].sizes() && row.scalar_type() == rows[0].scalar_type()) continue;
    throw Error(ExitCode::bad_input,
                "cached " + what + " of one micro-batch differ in shape or dtype: set micro_batch_size = 1");
  }
  return at::stack(rows);
}

}  // namespace

NamedTensors Reader::get(std::string_view kind, const std::string& key) {
  if (const auto it = kept_.find(key); it != kept_.end()) return it->second;
  NamedTensors tensors = store_.load(kind, key);
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.nbytes();
  if (kept_bytes_ + bytes > keep_bytes_) return tensors;
  kept_bytes_ += bytes;
  return kept_[key] = std::move(tensors);
}

CachedBatches::CachedBatches(Reader reader, Built built, data::Sampler sampler)
    : reader_(std::move(reader)), built_(std::move(built)), sampler_(std::move(sampler)) {}

Batch CachedBatches::batch(int64_t step, int64_t micro) {
  Batch batch;
  batch.step = static_cast<uint64_t>(step);
  std::vector<at::Tensor> latents;
  std::map<std::string, std::vector<at::Tensor>> conditioning;
  for (const data::Draw& draw : sampler_.batch(batch.step, micro)) {
    const Entry& entry = built_.entries.at(draw.sample);
    if (!entry.latents.empty()) latents.push_back(reader_.get(kLatents, entry.latents).at("latents"));
    for (const auto& [name, tensor] : reader_.get(kText, draw.drop_caption ? built_.empty_text : entry.text)) {
      conditioning[name].push_back(tensor);
    }
    batch.sample_keys.push_back(draw.key);
  }
  if (!latents.empty()) batch.latents = stacked(latents, "latents");
  for (const auto& [name, rows] : conditioning) {
    if (rows.size() != batch.sample_keys.size())
      throw Error(ExitCode::bad_input, "cached conditioning \"" + name + "\" is missing for a caption");
    batch.conditioning[name] = stacked(rows, "conditioning \"" + name + "\"");
  }
  return batch;
}

std::vector<std::string> CachedBatches::files(int64_t step, int64_t micro) const {
  std::vector<std::string> files;
  for (const data::Draw& draw : sampler_.batch(static_cast<uint64_t>(step), micro)) {
    files.push_back(built_.entries.at(draw.sample).file);
  }
  return files;
}

std::vector<data::SamplerItem> sampler_items(const data::Dataset& dataset) {
  std::vector<data::SamplerItem> items;
  for (const data::Sample& sample : dataset.samples) items.push_back({sample.bucket.key(), sample.repeats});
  return items;
}

}  // namespace trainer::cache
