#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <base/heartbeat.hpp>
#include <planner/byte_counter.hpp>
#include <planner/shape_kernels.hpp>
#include <train/chain.hpp>
#include <train/planning/dry_run.hpp>
#include <train/trainer.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>

namespace trainer::train {
namespace {

at::Tensor shaped(std::vector<int64_t> shape, at::ScalarType dtype, int64_t samples, at::Device device) {
  shape.insert(shape.begin(), samples);
  return at::empty(shape, at::TensorOptions().dtype(dtype).device(device));
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
    if (!parts_.batch.latents.empty()) batch.latents = shaped(parts_.batch.latents, at::kFloat, samples, parts_.data);
    for (const TensorInfo& info : parts_.batch.conditioning)
      batch.conditioning[info.name] = shaped(info.shape, info.dtype, samples, parts_.data);
    return batch;
  }
  [[nodiscard]] std::vector<std::string> files(int64_t, int64_t) const override { return {}; }

 private:
  const DryParts& parts_;
};

/// Noise without values; the numbers that choose timesteps are mid-range ones.
class DryRandom final : public Random {
 public:
  explicit DryRandom(at::Device device) : device_(device) {}
  [[nodiscard]] at::Tensor noise(const Batch& batch, at::IntArrayRef row_shape) const override {
    return shaped(row_shape.vec(), at::kFloat, static_cast<int64_t>(batch.sample_keys.size()), device_);
  }
  [[nodiscard]] std::vector<double> uniform(const Batch&, int64_t, int64_t count) const override {
    return std::vector<double>(static_cast<std::size_t>(count), 0.5);
  }
  [[nodiscard]] std::vector<double> normal(const Batch&, int64_t, int64_t count) const override {
    return std::vector<double>(static_cast<std::size_t>(count), 0.0);
  }

 private:
  at::Device device_;
};

/// Index of a dry device; that of "meta" is 0.
std::size_t index_of(at::Device device) { return static_cast<std::size_t>(std::max<int64_t>(device.index(), 0)); }
at::Device dry_device(std::size_t index) { return {at::kMeta, static_cast<at::DeviceIndex>(index)}; }
int64_t held(std::size_t index) { return planner::bytes_in_use(dry_device(index)).current; }

/// All up to the last that the model uses.
std::size_t devices_of(const DryParts& parts) {
  std::size_t last = index_of(parts.placement.prologue);
  for (const at::Device device : parts.placement.blocks) last = std::max(last, index_of(device));
  return std::max(last, index_of(parts.placement.epilogue)) + 1;
}

/// Reads the counters of bytes and work before every step of the schedule.
class Watch {
 public:
  Watch(const DryParts& parts, std::vector<StepBytes>& bytes)
      : parts_(parts), stages_(stages_of(parts.placement)), bytes_(bytes), rest_(bytes.size()) {}

  /// To be called between two steps of training: what is held now is none of the next one's.
  void begin() {
    for (std::size_t i = 0; i < rest_.size(); ++i) rest_[i] = held(i), bytes_[i].kept = 0;
    work_.clear();
    ended_ = 0;
  }
  void before(const ScheduleStep& step) {
    end_work();
    work_.push_back({step, flops_.flops()});
    if (step.pass != Pass::backward) return;
    const std::size_t index = index_of(stages_[static_cast<std::size_t>(step.stage)].device);
    bytes_[index].kept = std::max(bytes_[index].kept, held(index) - rest_[index] - gradients(index));
  }
  std::vector<StepWork> work() {
    end_work();
    return std::move(work_);
  }

 private:
  void end_work() {
    if (!work_.empty() && work_.size() > ended_) work_.back().flops = flops_.flops() - work_.back().flops;
    ended_ = work_.size();
  }
  [[nodiscard]] int64_t gradients(std::size_t index) const {
    int64_t bytes = 0;
    for (const Parameter* parameter : parts_.trained)
      if (const at::Tensor& grad = parameter->value().grad(); grad.defined() && index_of(grad.device()) == index)
        bytes += static_cast<int64_t>(grad.nbytes());
    return bytes;
  }

  const DryParts& parts_;
  std::vector<Stage> stages_;
  std::vector<StepBytes>& bytes_;
  std::vector<int64_t> rest_;  ///< held between steps
  std::vector<StepWork> work_;
  std::size_t ended_ = 0;  ///< steps whose work is known
  FlopCounter flops_;
};

/// Adds to `member` of every device what it holds beyond `before`, and makes that the new `before`.
void book(std::vector<StepBytes>& bytes, int64_t StepBytes::*member, std::vector<int64_t>& before) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i].*member = held(i) - before[i];
    before[i] = held(i);
  }
}

DryStep count_step(const DryParts& parts) {
  const c10::DeviceGuard data(parts.data);
  DryStep result;
  std::vector<StepBytes>& bytes = result.devices;
  bytes.resize(devices_of(parts));
  std::vector<int64_t> before;
  for (std::size_t i = 0; i < bytes.size(); ++i) before.push_back(held(i));
  optim::AdamW optimizer(parts.trained, parts.optimizer);
  book(bytes, &StepBytes::optimizer, before);
  std::optional<optim::Ema> ema;
  if (parts.ema) ema.emplace(parts.trained, 0.99);
  book(bytes, &StepBytes::ema, before);
  for (const Parameter* parameter : parts.trained)
    bytes[index_of(parameter->value().device())].gradients += static_cast<int64_t>(parameter->value().nbytes());
  DryBatches batches(parts);
  const DryRandom random(parts.data);
  optim::LrSchedule schedule;
  schedule.total_steps = 2;
  Watch watch(parts, bytes);
  beat();
  Parts run{parts.model, parts.objective, parts.memory,          parts.placement, random,
            batches,     optimizer,       ema ? &*ema : nullptr, schedule,        parts.max_grad_norm};
  run.before_step = [&](const ScheduleStep& step) { watch.before(step); };
  Trainer trainer(std::move(run), 0);
  trainer.dry_step();
  watch.begin();
  std::deque<planner::PeakMark> marks;
  for (std::size_t i = 0; i < bytes.size(); ++i) marks.emplace_back(dry_device(i));
  trainer.dry_step();
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i].peak = marks[i].above();
  result.work = watch.work();
  return result;
}

std::vector<BlockPlan> count_blocks(const DryParts& parts) {
  const PlacementPlan& placement = parts.placement;
  const c10::DeviceGuard guard(parts.data);
  DryBatches batches(parts);
  const Example example = parts.objective.prepare(batches.batch(0, 0), parts.model, DryRandom(parts.data));
  const auto blocks = parts.model.blocks();
  const c10::DeviceGuard there(placement.prologue);
  const Flow first = parts.model.prologue(moved(example.inputs, placement.prologue));
  const Chain chain(parts.model, first, 0);
  const std::vector<Flow> flows = planner::block_inputs(blocks, first, placement.blocks);
  std::map<std::string, planner::BlockCost> known;
  std::vector<BlockPlan> plans;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    beat();
    const CheckpointOptions options = parts.memory.run_at(chain.site(i), chain.part(i), nullptr).options;
    const std::string key = planner::cost_key(*blocks[i], flows[i]) + (options.recompute ? '1' : '0') +
                            std::to_string(reinterpret_cast<std::uintptr_t>(options.save)) +
                            (options.elide ? '1' : '0');
    auto found = known.find(key);
    if (found == known.end()) found = known.emplace(key, planner::measure(*blocks[i], flows[i], options)).first;
    plans.push_back({blocks[i]->info().name, blocks[i]->info().type, options, found->second});
  }
  return plans;
}

}  // namespace

DryStep dry_step(const DryParts& parts) {
  return planner::on_shapes("the training step", [&] { return count_step(parts); });
}

std::vector<BlockPlan> dry_blocks(const DryParts& parts) {
  return planner::on_shapes("the training step", [&] { return count_blocks(parts); });
}

}  // namespace trainer::train
