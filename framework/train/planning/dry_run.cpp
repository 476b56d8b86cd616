#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <planner/byte_counter.hpp>
#include <planner/shape_kernels.hpp>
#include <train/planning/dry_run.hpp>
#include <train/trainer.hpp>

#include <algorithm>
#include <map>

namespace trainer::train {
namespace {

const at::Device kDry = at::kMeta;

at::Tensor shaped(std::vector<int64_t> shape, at::ScalarType dtype, int64_t samples) {
  shape.insert(shape.begin(), samples);
  return at::empty(shape, at::TensorOptions().dtype(dtype).device(kDry));
}

/// Samples without content.
class DryBatches final : public BatchSource {
 public:
  explicit DryBatches(const DryParts& parts) : parts_(parts) {}
  [[nodiscard]] int64_t micro_batches() const override { return parts_.micro_batches; }
  Batch batch(int64_t step, int64_t micro) override {
    Batch batch;
    batch.step = static_cast<uint64_t>(step);
    const int64_t samples = parts_.batch.samples;
    for (int64_t i = 0; i < samples; ++i) batch.sample_keys.push_back(static_cast<uint64_t>(micro * samples + i));
    if (!parts_.batch.latents.empty()) batch.latents = shaped(parts_.batch.latents, at::kFloat, samples);
    for (const TensorInfo& info : parts_.batch.conditioning)
      batch.conditioning[info.name] = shaped(info.shape, info.dtype, samples);
    return batch;
  }
  [[nodiscard]] std::vector<std::string> files(int64_t, int64_t) const override { return {}; }

 private:
  const DryParts& parts_;
};

/// Noise without values; the numbers that choose timesteps are mid-range ones.
class DryRandom final : public Random {
 public:
  [[nodiscard]] at::Tensor noise(const Batch& batch, at::IntArrayRef row_shape) const override {
    return shaped(row_shape.vec(), at::kFloat, static_cast<int64_t>(batch.sample_keys.size()));
  }
  [[nodiscard]] std::vector<double> uniform(const Batch&, int64_t, int64_t count) const override {
    return std::vector<double>(static_cast<std::size_t>(count), 0.5);
  }
  [[nodiscard]] std::vector<double> normal(const Batch&, int64_t, int64_t count) const override {
    return std::vector<double>(static_cast<std::size_t>(count), 0.0);
  }
};

int64_t gradient_bytes(const std::vector<Parameter*>& trained) {
  int64_t bytes = 0;
  for (const Parameter* parameter : trained)
    if (const at::Tensor& grad = parameter->value().grad(); grad.defined())
      bytes += static_cast<int64_t>(grad.nbytes());
  return bytes;
}

int64_t held() { return planner::bytes_in_use(kDry).current; }

/// The objective, with a look at the bytes whenever a backward begins.
class Watched final : public Objective {
 public:
  explicit Watched(const DryParts& parts) : parts_(parts) {}
  [[nodiscard]] std::vector<std::string> provides() const override { return parts_.objective.provides(); }
  [[nodiscard]] Example prepare(const Batch& batch, const Model& model, const Random& random) const override {
    return parts_.objective.prepare(batch, model, random);
  }
  [[nodiscard]] at::Tensor loss(const Example& example, const Prediction& predict) const override {
    at::Tensor loss = parts_.objective.loss(example, predict);
    if (loss.requires_grad())
      loss.register_hook([this](const at::Tensor& grad) {
        kept = std::max(kept, held() - rest - gradient_bytes(parts_.trained));
        return grad;
      });
    return loss;
  }
  int64_t rest = 0;          ///< held between steps
  mutable int64_t kept = 0;  ///< most beside that and gradients when a backward began

 private:
  const DryParts& parts_;
};

StepBytes count_step(const DryParts& parts) {
  StepBytes bytes;
  const int64_t before = held();
  optim::AdamW optimizer(parts.trained, parts.optimizer);
  bytes.optimizer = held() - before;
  std::optional<optim::Ema> ema;
  if (parts.ema) ema.emplace(parts.trained, 0.99);
  bytes.ema = held() - before - bytes.optimizer;
  DryBatches batches(parts);
  const DryRandom random;
  Watched objective(parts);
  optim::LrSchedule schedule;
  schedule.total_steps = 2;
  Trainer trainer({parts.model, objective, parts.memory, parts.placement, random, batches, optimizer,
                   ema ? &*ema : nullptr, schedule, parts.max_grad_norm},
                  0);
  trainer.dry_step();
  for (const Parameter* parameter : parts.trained) bytes.gradients += static_cast<int64_t>(parameter->value().nbytes());
  objective.rest = held();
  objective.kept = 0;
  const planner::PeakMark mark(kDry);
  trainer.dry_step();
  bytes.kept = objective.kept;
  bytes.peak = mark.above();
  return bytes;
}

std::vector<BlockPlan> count_blocks(const DryParts& parts) {
  DryBatches batches(parts);
  const Example example = parts.objective.prepare(batches.batch(0, 0), parts.model, DryRandom());
  const auto blocks = parts.model.blocks();
  const std::vector<Flow> flows = planner::block_inputs(blocks, parts.model.prologue(example.inputs));
  std::map<std::string, planner::BlockCost> known;
  std::vector<BlockPlan> plans;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Site site{blocks[i], static_cast<int64_t>(i), static_cast<int64_t>(blocks.size()), 0};
    const CheckpointOptions options = parts.memory.run_at(site, nullptr).options;
    const std::string key = planner::cost_key(*blocks[i], flows[i]) + (options.recompute ? '1' : '0') +
                            (options.save != nullptr ? '1' : '0') + (options.elide ? '1' : '0');
    auto found = known.find(key);
    if (found == known.end()) found = known.emplace(key, planner::measure(*blocks[i], flows[i], options)).first;
    plans.push_back({blocks[i]->info().name, blocks[i]->info().type, options, found->second});
  }
  return plans;
}

}  // namespace

StepBytes dry_step(const DryParts& parts) {
  return planner::on_shapes("the training step", [&] { return count_step(parts); });
}

std::vector<BlockPlan> dry_blocks(const DryParts& parts) {
  return planner::on_shapes("the training step", [&] { return count_blocks(parts); });
}

}  // namespace trainer::train
