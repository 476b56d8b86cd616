#include <ATen/core/Tensor.h>
#include <preparation/ahead_batches.hpp>

namespace trainer::preparation {
namespace {

Batch pinned(Batch batch) {
  if (batch.latents.defined()) batch.latents = batch.latents.pin_memory();
  for (auto& [name, tensor] : batch.conditioning) tensor = tensor.pin_memory();
  for (at::Tensor& tensor : batch.references) tensor = tensor.pin_memory();
  return batch;
}

}  // namespace

AheadBatches::AheadBatches(execution::BatchSource& source, bool pin)
    : source_(source), micro_batches_(source.micro_batches()), ahead_([this, pin](const Key& key) {
        const std::lock_guard lock(mutex_);
        Batch batch = source_.batch(key.first, key.second);
        return pin ? pinned(std::move(batch)) : batch;
      }) {}

Batch AheadBatches::batch(int64_t step, int64_t micro) {
  return ahead_.take({step, micro}, micro + 1 < micro_batches_ ? Key{step, micro + 1} : Key{step + 1, 0});
}

std::vector<std::string> AheadBatches::files(int64_t step, int64_t micro) const {
  const std::lock_guard lock(mutex_);
  return source_.files(step, micro);
}

}  // namespace trainer::preparation
