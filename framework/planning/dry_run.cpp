#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <base/heartbeat.hpp>
#include <execution/chain.hpp>
#include <execution/forward.hpp>
#include <execution/trainer.hpp>
#include <planner/byte_counter.hpp>
#include <planner/shape_kernels.hpp>
#include <planning/dry_run.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>

namespace trainer::planning {
namespace {

at::Tensor shaped(std::vector<int64_t> shape, at::ScalarType dtype, int64_t samples, at::Device device) {
  shape.insert(shape.begin(), samples);
  return at::empty(shape, at::TensorOptions().dtype(dtype).device(device));
}

/// Samples without content.
class DryBatches final : public execution::BatchSource {
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

int64_t held(std::size_t index) { return planner::bytes_in_use(dry_device(index)).current; }

/// All up to the last that the model uses.
std::size_t devices_of(const DryParts& parts) {
  std::size_t last = dry_index(parts.placement.prologue);
  for (const at::Device device : parts.placement.blocks) last = std::max(last, dry_index(device));
  return std::max(last, dry_index(parts.placement.epilogue)) + 1;
}

/// Reads the counters of bytes and work before every step of the schedule.
class Watch {
 public:
  Watch(const DryParts& parts, std::vector<StepBytes>& bytes)
      : parts_(parts),
        stages_(execution::stages_of(parts.placement)),
        bytes_(bytes),
        rest_(bytes.size()),
        last_forward_(bytes.size()) {}

  /// To be called between two steps of training: what is held now is none of the next one's.
  void begin() {
    for (std::size_t i = 0; i < rest_.size(); ++i) {
      rest_[i] = last_forward_[i] = held(i);
      bytes_[i].kept = bytes_[i].before_blocks = 0;
    }
    work_.clear();
    ended_ = 0;
  }
  void before_blocks(const ScheduleStep& step) {
    const execution::Stage& stage = stages_[static_cast<std::size_t>(step.stage)];
    const std::size_t index = dry_index(stage.device);
    if (step.micro_batch != 0 || stage.first == stage.end) return;
    bytes_[index].before_blocks = std::max(bytes_[index].before_blocks, held(index) - rest_[index]);
  }
  void before(const ScheduleStep& step) {
    end_work();
    work_.push_back({step, flops_.flops()});
    const std::size_t index = dry_index(stages_[static_cast<std::size_t>(step.stage)].device);
    if (step.pass == Pass::forward) last_forward_[index] = held(index) - gradients(index);
    if (step.pass != Pass::backward) return;
    bytes_[index].kept = std::max(bytes_[index].kept, held(index) - rest_[index] - gradients(index));
  }
  /// Bytes that the last micro-batch leaves, its loss for example; to be called when all are through.
  [[nodiscard]] int64_t left(std::size_t index) const { return held(index) - gradients(index) - last_forward_[index]; }
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
      if (const at::Tensor& grad = parameter->value().grad(); grad.defined() && dry_index(grad.device()) == index)
        bytes += static_cast<int64_t>(grad.nbytes());
    return bytes;
  }

  const DryParts& parts_;
  std::vector<execution::Stage> stages_;
  std::vector<StepBytes>& bytes_;
  std::vector<int64_t> rest_;          ///< held between steps
  std::vector<int64_t> last_forward_;  ///< held before the last forward, without gradients
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

/// Of a schedule on one device, each micro-batch forward and backward before the next, the first ones.
constexpr int64_t kFirstMicroBatches = 2;
bool repeats(const DryParts& parts) {
  if (parts.micro_batches <= kFirstMicroBatches || execution::stages_of(parts.placement).size() != 1) return false;
  const std::vector<ScheduleStep>& schedule = parts.placement.schedule;
  for (std::size_t i = 0; i < schedule.size(); ++i)
    if (schedule[i].micro_batch != static_cast<int64_t>(i / 2) || (schedule[i].pass == Pass::backward) != (i % 2 == 1))
      return false;
  return true;
}

/// `left`: bytes that the last micro-batch leaves on each device.
DryStep count_step(const DryParts& parts, std::vector<int64_t>& left) {
  const c10::DeviceGuard data(parts.data);
  DryStep result;
  std::vector<StepBytes>& bytes = result.devices;
  bytes.resize(devices_of(parts));
  std::vector<int64_t> before;
  for (std::size_t i = 0; i < bytes.size(); ++i) before.push_back(held(i));
  optim::AdamW optimizer(parts.trained, parts.optimizer);
  book(bytes, &StepBytes::optimizer, before);
  std::optional<optim::FusedBackward> fused;
  if (parts.fused_backward) fused.emplace(optimizer);
  std::optional<optim::Ema> ema;
  if (parts.ema) ema.emplace(parts.trained, 0.99);
  book(bytes, &StepBytes::ema, before);
  for (const Parameter* parameter : parts.trained)
    if (!fused)
      bytes[dry_index(parameter->value().device())].gradients += static_cast<int64_t>(parameter->value().nbytes());
  DryBatches batches(parts);
  const DryRandom random(parts.data);
  optim::LrSchedule schedule;
  schedule.total_steps = 2;
  Watch watch(parts, bytes);
  beat();
  execution::Parts run{parts.model, parts.objective, parts.memory,          parts.placement, random,
                       batches,     optimizer,       ema ? &*ema : nullptr, schedule,        parts.max_grad_norm};
  run.fused = fused ? &*fused : nullptr;
  run.before_step = [&](const ScheduleStep& step) { watch.before(step); };
  run.before_blocks = [&](const ScheduleStep& step) { watch.before_blocks(step); };
  execution::Trainer trainer(std::move(run), 0);
  // What moves weights or inputs may make buffers in its first step, which stay.
  if (parts.memory.residency() != nullptr || parts.memory.store() != nullptr) trainer.dry_step();
  watch.begin();
  std::deque<planner::PeakMark> marks;
  for (std::size_t i = 0; i < bytes.size(); ++i) marks.emplace_back(dry_device(i));
  trainer.dry_step([&] {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i].passes = marks[i].above();
      left.push_back(watch.left(i));
    }
  });
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i].peak = marks[i].above();
  result.work = watch.work();
  return result;
}

/// Counts the first micro-batches, and fills in the others.
DryStep count_first(const DryParts& parts) {
  PlacementPlan placement = parts.placement;
  placement.schedule.resize(2 * kFirstMicroBatches);
  std::vector<int64_t> left;
  DryStep step =
      count_step({parts.model, parts.objective, parts.memory, placement, parts.trained, parts.optimizer, parts.ema,
                  parts.max_grad_norm, kFirstMicroBatches, parts.batch, parts.data, parts.fused_backward},
                 left);
  const std::size_t last = step.work.size() - 2;  // forward and backward of the last that ran
  for (int64_t micro = kFirstMicroBatches; micro < parts.micro_batches; ++micro)
    for (const std::size_t pass : {last, last + 1}) {
      StepWork work = step.work[pass];
      work.step.micro_batch = micro;
      step.work.push_back(work);
    }
  for (std::size_t i = 0; i < left.size(); ++i) {
    StepBytes& bytes = step.devices[i];
    const int64_t more = (parts.micro_batches - kFirstMicroBatches) * left[i];
    bytes.kept += more;
    bytes.passes += more;
    bytes.peak = std::max(bytes.peak, bytes.passes);
  }
  return step;
}

std::vector<BlockPlan> count_blocks(const DryParts& parts) {
  const PlacementPlan& placement = parts.placement;
  const c10::DeviceGuard guard(parts.data);
  DryBatches batches(parts);
  const Example example = parts.objective.prepare(batches.batch(0, 0), parts.model, DryRandom(parts.data));
  const auto blocks = parts.model.blocks();
  const c10::DeviceGuard there(placement.prologue);
  const Flow first = parts.model.prologue(execution::moved(example.inputs, placement.prologue));
  const execution::Chain chain(parts.model, first, 0);
  const std::vector<Flow> flows = planner::block_inputs(blocks, first, placement.blocks);
  std::map<std::string, planner::BlockCost> known;
  std::vector<BlockPlan> plans;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    beat();
    const BlockRun how = parts.memory.run_at(chain.site(i), chain.part(i), nullptr);
    const CheckpointOptions& options = how.options;
    const std::string key = planner::cost_key(*blocks[i], flows[i]) + (options.recompute ? '1' : '0') +
                            std::to_string(reinterpret_cast<std::uintptr_t>(options.save)) +
                            (options.elide ? '1' : '0');
    auto found = known.find(key);
    if (found == known.end()) found = known.emplace(key, planner::measure(*blocks[i], flows[i], how)).first;
    plans.push_back({blocks[i]->info().name, blocks[i]->info().type, options, found->second});
    if (parts.fused_backward) plans.back().cost.gradients = 0;  // none outlives the backward of its block
  }
  return plans;
}

}  // namespace

DryStep dry_step(const DryParts& parts) {
  return planner::on_shapes("the training step", [&] {
    std::vector<int64_t> left;
    return repeats(parts) ? count_first(parts) : count_step(parts, left);
  });
}

double dry_loss(const DryParts& parts) {
  return planner::on_shapes("the validation", [&] {
    const at::NoGradGuard no_grad;
    const c10::DeviceGuard guard(parts.data);
    DryBatches batches(parts);
    const FlopCounter flops;
    const Example example = parts.objective.prepare(batches.batch(0, 0), parts.model, DryRandom(parts.data));
    static_cast<void>(
        execution::loss_without_gradient(parts.model, parts.objective, example, parts.memory, parts.placement));
    return flops.flops();
  });
}

std::vector<BlockPlan> dry_blocks(const DryParts& parts) {
  return planner::on_shapes("the training step", [&] { return count_blocks(parts); });
}

}  // namespace trainer::planning
