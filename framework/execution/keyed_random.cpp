#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <execution/keyed_random.hpp>

namespace trainer::execution {
namespace {

KeyedRng stream_of(uint64_t seed, RngStream stream, const Batch& batch, int64_t b) {
  return {seed, stream, batch.step, batch.sample_keys.at(static_cast<std::size_t>(b))};
}

}  // namespace

at::Tensor keyed_normal(KeyedRng rng, at::IntArrayRef shape) {
  at::Tensor data = at::empty(shape, at::kFloat);
  rng.fill_normal({data.mutable_data_ptr<float>(), static_cast<std::size_t>(data.numel())});
  return data;
}

at::Tensor KeyedRandom::noise(const Batch& batch, at::IntArrayRef row_shape) const {
  std::vector<at::Tensor> rows;
  for (std::size_t b = 0; b < batch.sample_keys.size(); ++b)
    rows.push_back(keyed_normal(stream_of(seed_, RngStream::noise, batch, static_cast<int64_t>(b)), row_shape));
  return at::stack(rows);
}

std::vector<double> KeyedRandom::uniform(const Batch& batch, int64_t b, int64_t count) const {
  KeyedRng rng = stream_of(seed_, RngStream::timestep, batch, b);
  std::vector<double> numbers(static_cast<std::size_t>(count));
  for (double& number : numbers) number = rng.uniform();
  return numbers;
}

std::vector<double> KeyedRandom::normal(const Batch& batch, int64_t b, int64_t count) const {
  KeyedRng rng = stream_of(seed_, RngStream::timestep_normal, batch, b);
  std::vector<double> numbers(static_cast<std::size_t>(count));
  for (double& number : numbers) number = rng.normal();
  return numbers;
}

}  // namespace trainer::execution
