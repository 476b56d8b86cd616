/// @file Out-of-line destructors and defaults: vtables and typeinfo live once, in this library.
#include <ATen/ops/slice.h>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/low_rank.hpp>
#include <trainer/sdk/ops/fused.hpp>
#include <trainer/sdk/registrar.hpp>

namespace trainer {

WeightSource::~WeightSource() = default;
FrozenWeight::~FrozenWeight() = default;
LinearAdapter::~LinearAdapter() = default;
LowRankAdapter::~LowRankAdapter() = default;
Block::~Block() = default;
ModelBuilder::~ModelBuilder() = default;
Model::~Model() = default;
Tokenizer::~Tokenizer() = default;
TextEncoder::~TextEncoder() = default;
Autoencoder::~Autoencoder() = default;
Random::~Random() = default;
Objective::~Objective() = default;
Adapter::~Adapter() = default;
WeightFormat::~WeightFormat() = default;
WeightResidency::~WeightResidency() = default;
ActivationStore::~ActivationStore() = default;
RecomputePolicy::~RecomputePolicy() = default;
SavePolicy::~SavePolicy() = default;
MemoryStrategy::~MemoryStrategy() = default;
Placement::~Placement() = default;
Registrar::~Registrar() = default;

int64_t WeightFormat::bytes(const LinearState& linear, at::ScalarType compute) const {
  return linear.in * linear.out * static_cast<int64_t>(at::elementSize(compute));
}

at::Tensor LowRankAdapter::apply(const at::Tensor& x, const at::Tensor& y) const {
  const Pair given = pair();
  return low_rank_sum(x, y, given.a, given.b, given.scale);
}

at::Tensor WeightSource::read_rows(std::string_view name, int64_t begin, int64_t end) {
  return read(name).slice(0, begin, end);
}

at::Tensor Model::epilogue_slice(const Flow& flow, int64_t begin, int64_t end) {
  return epilogue(flow).slice(-1, begin, end);
}

void Adapter::start_from(AdapterFile) {
  throw Error(ExitCode::bad_recipe, "adapter.path: this kind of adapter does not start from a file");
}

}  // namespace trainer
