#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>
#include <distributed/buckets.hpp>
#include <execution/forward.hpp>
#include <metrics/meter.hpp>
#include <planner/byte_counter.hpp>
#include <planner/shape_kernels.hpp>
#include <planning/conditioning.hpp>
#include <planning/dry_run.hpp>
#include <planning/placement_report.hpp>
#include <planning/plan.hpp>
#include <planning/recipe_budget.hpp>
#include <planning/run_data.hpp>
#include <sampling/guidance.hpp>

#include <algorithm>
#include <deque>
#include <functional>

namespace trainer::planning {
namespace {

/// Batches in RAM where other devices compute: one read ahead, one handed over, one made into model inputs.
constexpr int64_t kBatchesAhead = 3;
constexpr int64_t kTexts = 32;  // run together; what more of them add is extrapolated

at::Tensor shaped(const std::vector<int64_t>& shape, at::ScalarType dtype, at::Device device) {
  return at::empty(shape, at::TensorOptions().dtype(dtype).device(device));
}

/// RAM that a run takes beyond a plan's process and its tensors: libraries opened later (those of pictures are some
/// sixty), kernels that oneDNN compiles, freed memory that the allocator keeps, pages of a small mapped model. On the
/// quickstart: 80 MB. tests/e2e/plan_test.py holds it.
constexpr int64_t kBesideTensors = 120'000'000;

/// Everything that the phases share.
class Planner {
 public:
  Planner(assembly::Assembly& assembly, std::vector<double> speeds)
      : assembly_(assembly), recipe_(assembly.recipe), speeds_(std::move(speeds)) {
    for (std::size_t i = 0; i < assembly_.devices.memories().size(); ++i) before_.push_back(held(i));
  }

  Plan plan() {
    Plan plan;
    for (const at::Device memory : assembly_.devices.memories()) plan.memories.push_back(memory.str());
    plan.host = static_cast<std::size_t>(assembly_.devices.dry(at::kCPU).index());
    factor_ = planner::on_shapes("the autoencoder", [&] { return foretold_factor(assembly_, notes_); });
    files_ = files_of(recipe_);
    PhasePlan cache = plan_cache();
    PhasePlan load = phase(
        "load",
        [&] {
          const auto placement = assembly_.components.placement();
          loaded_ = assembly_.models.load(assembly_.strategies.stack(), {assembly::Weights::shapes, placement.get()});
          return std::string();
        },
        /*must=*/true);
    plan_training(plan);
    PhasePlan train{"train", std::vector<int64_t>(plan.memories.size()), load.host, {}};
    for (std::size_t i = 0; i < plan.devices.size(); ++i) (*train.bytes)[i] = plan.devices[i].total();
    PhasePlan validate = recipe_.validates() ? plan_validation(plan) : PhasePlan{};
    PhasePlan sample = plan_samples(plan.devices);
    if (load.bytes) load.bytes->front() += data_.prompts;
    // Parameters are written from where they are, one at a time by way of the host; an export copies them, scaled.
    PhasePlan save{"save", std::vector<int64_t>(plan.memories.size()), 0, {}};
    for (std::size_t i = 0; i < plan.devices.size(); ++i)
      (*save.bytes)[i] = plan.devices[i].resident() + trained_bytes(i);
    (*save.bytes)[plan.host] += largest_trained_elsewhere(plan.host);
    if (plan.host >= plan.devices.size()) {  // else it is in the device's own numbers
      for (PhasePlan* phase : {&train, &validate, &sample, &save})
        if (phase->bytes) (*phase->bytes)[plan.host] += data_.cached + kBatchesAhead * batch_bytes_;
    }
    plan.model = loaded_.model->describe();
    plan.phases = {std::move(cache), std::move(load), std::move(train), std::move(sample), std::move(save)};
    if (recipe_.validates()) plan.phases.insert(plan.phases.begin() + 3, std::move(validate));
    plan.program = metrics::memory_use().resident + kBesideTensors;
    return plan;
  }

 private:
  static int64_t held(std::size_t index) { return planner::bytes_in_use(dry_device(index)).current; }

  /// Peaks of one phase. Unless it must work, want of files or shape kernels leaves it open.
  PhasePlan phase(const std::string& name, const std::function<std::string()>& work, bool must = false) {
    PhasePlan plan{name, {}, 0, {}};
    std::deque<planner::PeakMark> marks;
    for (std::size_t i = 0; i < before_.size(); ++i) marks.emplace_back(dry_device(i));
    const planner::PeakMark host(at::kCPU);
    try {
      plan.note = planner::on_shapes(name, work);
      plan.bytes.emplace();
      for (const planner::PeakMark& mark : marks) plan.bytes->push_back(mark.above());
      plan.host = host.above();
    } catch (const c10::Error& error) {
      if (must) throw;
      plan.note = error.what_without_backtrace();
    } catch (const std::exception& error) {
      if (must) throw;
      plan.note = error.what();
    }
    plan.note = plan.note.substr(0, plan.note.find('\n'));
    return plan;
  }

  [[nodiscard]] DryParts dry_parts(const Objective& objective, Plan& plan) const {
    const recipe::Train& train = recipe_.train;
    const distributed::Share& share = assembly_.share;
    const data::Bucket bucket = largest_of(recipe_, factor_);
    BatchShape batch{share.micro_batch_size, {}, conditioning_.tensors};
    if (const DiffusionTraits* traits = loaded_.model->diffusion())
      batch.latents = {traits->latent_channels, 1, bucket.height / factor_, bucket.width / factor_};
    plan.batch = std::to_string(share.micro_batch_size) + " sample(s) of " + bucket.text() + " at a time, " +
                 std::to_string(share.micro_batches) + " time(s) a step, " + std::to_string(conditioning_.tokens()) +
                 " text tokens";
    for (const std::string& note : {conditioning_.note, notes_})
      if (!note.empty()) plan.batch += " (" + note + ")";
    return {*loaded_.model,
            objective,
            loaded_.memory,
            loaded_.placement,
            loaded_.trained,
            {},
            train.ema_decay > 0,
            train.max_grad_norm,
            share.micro_batches,
            std::move(batch),
            assembly_.devices.dry(at::kCPU),
            recipe_.optimizer.fused_backward};
  }

  void plan_training(Plan& plan) {
    const auto objective = assembly_.components.objective();
    std::optional<Conditioning> conditioning = foretell_conditioning(assembly_, *loaded_.model, *objective);
    if (!conditioning)
      throw Error(ExitCode::failed,
                  "neither the text encoder nor the model tells the shapes of the model's inputs, so "
                  "no batch is known before the cache is made");
    conditioning_ = std::move(*conditioning);
    const DryParts parts = dry_parts(*objective, plan);
    batch_bytes_ = (latent_bytes(parts.batch) + text_bytes(parts.batch)) * parts.batch.samples;
    data_ = held_data(recipe_, parts.batch, files_);
    const PlacementReport report = report_placement(loaded_.placement, loaded_.parts);
    for (std::size_t i = 0; i < assembly_.devices.training().size(); ++i) {
      DevicePlan& device = plan.devices.emplace_back();
      device.device = recipe_.placement.devices[i];
      for (const DeviceShare& share : report.devices)
        if (share.device == dry_device(i)) device.parts = share.parts;
      if (loaded_.adapter) device.adapter = trained_bytes(i);
      device.weights = held(i) - before_[i] - device.adapter;
    }
    const DryStep step = dry_step(parts);
    plan.blocks = dry_blocks(parts);
    BlockCosts costs;
    for (const BlockPlan& block : plan.blocks) costs.push_back({block.cost});
    const auto first = first_passes(loaded_.placement, costs, std::vector<std::size_t>(costs.size(), 0), step.devices);
    for (std::size_t i = 0; i < plan.devices.size(); ++i) {
      if (i < step.devices.size()) plan.devices[i].step = step.devices[i], plan.devices[i].first = first[i];
      plan.devices[i].data = (i == 0 ? data_.prompts : 0) + (i == plan.host ? data_.cached : 0);
    }
    require_effect(assembly_, loaded_.memory);
    plan_time(plan, step, parts.micro_batches);
  }

  void plan_time(Plan& plan, const DryStep& step, int64_t micro_batches) {
    const std::vector<execution::Stage> stages = execution::stages_of(loaded_.placement);
    std::vector<double> times;
    double all = 0, again = 0;
    for (const StepWork& work : step.work) {
      const execution::Stage& stage = stages[static_cast<std::size_t>(work.step.stage)];
      const auto device = static_cast<std::size_t>(stage.device.index());
      double flops = work.flops;
      for (std::size_t i = stage.first; work.step.pass == Pass::backward && i < stage.end; ++i)
        flops -= plan.blocks[i].cost.elided_flops;
      plan.devices.at(device).flops += flops;
      all += flops;
      times.push_back(speeds_.empty() ? flops : flops / speeds_[std::min(device, speeds_.size() - 1)]);
    }
    for (const BlockPlan& block : plan.blocks)
      again += block.cost.recomputed_flops * static_cast<double>(micro_batches);
    const Timeline timeline = timeline_of(loaded_.placement, times);
    for (std::size_t i = 0; i < plan.devices.size(); ++i) {
      plan.devices[i].busy = timeline.busy(dry_device(i));
      const auto working = timeline.working.find(dry_device(i).str());
      if (!speeds_.empty()) plan.devices[i].seconds = working == timeline.working.end() ? 0 : working->second;
    }
    plan.time = {timeline.makespan, timeline.serial, !speeds_.empty(), all > again ? all / (all - again) : 1};
  }

  /// So many texts through the encoder at once.
  PhasePlan plan_texts(int64_t count) {
    return phase("cache", [&] {
      const at::NoGradGuard no_grad;
      const c10::DeviceGuard guard(assembly_.devices.dry(assembly_.devices.of(recipe_.text_encoder)));
      const std::vector<std::string> texts(static_cast<std::size_t>(count), "a caption");
      const std::vector<NamedTensors> encoded =
          assembly_.encoders.text_encoder(assembly::Weights::shapes)->encode(texts);
      text_bytes_ = 0;
      for (const auto& [name, tensor] : encoded.front()) text_bytes_ += static_cast<int64_t>(tensor.nbytes());
      return std::string();
    });
  }

  /// What many texts take rises with their number, in the end by a constant for each.
  PhasePlan plan_all_texts() {
    const int64_t most = texts_of(recipe_, files_);
    PhasePlan all = plan_texts(std::min(most, kTexts));
    const int64_t count = std::min(most, captions_at_once(text_bytes_));
    if (count <= kTexts || !all.bytes) return all;
    const PhasePlan half = plan_texts(kTexts / 2);
    const auto extend = [&](int64_t& most, int64_t of_half) {
      most += (most - of_half) * (count - kTexts) / (kTexts / 2);
    };
    for (std::size_t i = 0; half.bytes && i < all.bytes->size(); ++i) extend((*all.bytes)[i], (*half.bytes)[i]);
    extend(all.host, half.host);
    if (!files_) all.note = "for " + std::to_string(count) + " captions at once";
    return all;
  }

  /// Captions and pictures through the encoders, one after the other.
  PhasePlan plan_cache() {
    PhasePlan text = plan_all_texts();
    if (!recipe_.pictures()) return text;
    const PhasePlan pictures = phase("cache", [&] {
      const at::NoGradGuard no_grad;
      const c10::DeviceGuard guard(autoencoder_device());
      for (const Of of : {Of::trained, Of::held_out})
        if (const data::Bucket bucket = largest_of(recipe_, factor_, of); bucket.width > 0)
          static_cast<void>(
              assembly_.encoders.autoencoder(assembly::Weights::shapes)
                  ->encode(shaped({1, 3, 1, bucket.height, bucket.width}, at::kFloat, autoencoder_device())));
      return std::string();
    });
    if (!text.bytes || !pictures.bytes) {
      text.note = !text.bytes ? "text encoder: " + text.note : "autoencoder: " + pictures.note;
      text.bytes.reset();
      return text;
    }
    for (std::size_t i = 0; i < text.bytes->size(); ++i)
      (*text.bytes)[i] = std::max((*text.bytes)[i], (*pictures.bytes)[i]);
    text.host = std::max(text.host, pictures.host);
    return text;
  }

  /// One sample after the other, without gradients. With averaged weights these change places with the trained ones.
  PhasePlan plan_validation(Plan& plan) {
    const auto objective = assembly_.components.objective();
    Plan ignored;
    DryParts parts = dry_parts(*objective, ignored);
    parts.batch.samples = 1;
    const data::Bucket bucket = largest_of(recipe_, factor_, Of::held_out);
    if (!parts.batch.latents.empty() && bucket.width > 0)
      parts.batch.latents[2] = bucket.height / factor_, parts.batch.latents[3] = bucket.width / factor_;
    const recipe::Validation& asked = recipe_.validation;
    ValidationPlan validation{held_out_files(recipe_), asked.timesteps, 2};
    if (asked.every > 0) validation.times += (recipe_.run.steps - 1) / asked.every;
    PhasePlan phase_plan = phase("validate", [&] {
      validation.flops = dry_loss(parts);
      return std::string();
    });
    if (!phase_plan.bytes) return phase_plan;
    for (std::size_t i = 0; i < plan.devices.size(); ++i) (*phase_plan.bytes)[i] += plan.devices[i].resident();
    if (validation.samples && !speeds_.empty())
      validation.seconds =
          seconds_for(validation.flops, plan) * static_cast<double>(*validation.samples * validation.timesteps);
    plan.validation = validation;
    return phase_plan;
  }

  /// Of work that the devices share as they share a step, one after the other.
  [[nodiscard]] double seconds_for(double flops, const Plan& plan) const {
    double all = 0, seconds = 0;
    for (const DevicePlan& device : plan.devices) all += device.flops;
    for (std::size_t i = 0; i < plan.devices.size() && all > 0; ++i)
      seconds += flops * plan.devices[i].flops / all / speeds_[std::min(i, speeds_.size() - 1)];
    return seconds;
  }

  /// Drawing: the model without gradients, then the autoencoder beside it.
  PhasePlan plan_samples(const std::vector<DevicePlan>& devices) {
    if (recipe_.sample.prompts.empty()) return {"sample", std::vector<int64_t>(before_.size()), 0, "no prompts"};
    PhasePlan plan = phase("sample", [&] {
      const at::NoGradGuard no_grad;
      const DiffusionTraits* traits = loaded_.model->diffusion();
      const std::vector<int64_t>& size = recipe_.sample.size;
      const at::Tensor latents = shaped({1, traits->latent_channels, 1, size[1] / factor_, size[0] / factor_},
                                        at::kFloat, loaded_.placement.prologue);
      draw_once(*traits, latents);
      const c10::DeviceGuard guard(autoencoder_device());
      static_cast<void>(
          assembly_.encoders.autoencoder(assembly::Weights::shapes)->decode(latents.to(autoencoder_device())));
      return std::string();
    });
    if (plan.bytes)
      for (std::size_t i = 0; i < devices.size(); ++i) (*plan.bytes)[i] += devices[i].resident();
    return plan;
  }

  void draw_once(const DiffusionTraits& traits, const at::Tensor& latents) {
    const at::Device device = latents.device();
    NamedTensors inputs{{"latents", latents}, {"timestep", shaped({1}, at::kFloat, device)}};
    if (traits.guidance_embedded) inputs["guidance"] = shaped({1}, at::kFloat, device);
    for (const TensorInfo& info : conditioning_.tensors) {
      std::vector<int64_t> shape = info.shape;
      shape.insert(shape.begin(), 1);
      inputs[info.name] = shaped(shape, info.dtype, device);
    }
    at::Tensor first = execution::predict(*loaded_.model, inputs, loaded_.memory, loaded_.placement);
    if (sampling::needs_negative(traits, recipe_.sample.guidance))
      static_cast<void>(execution::predict(*loaded_.model, inputs, loaded_.memory, loaded_.placement));
  }

  [[nodiscard]] int64_t largest_trained_elsewhere(std::size_t host) const {
    int64_t bytes = 0;
    for (const Parameter* parameter : loaded_.trained)
      if (parameter->value().device() != dry_device(host))
        bytes = std::max(bytes, static_cast<int64_t>(parameter->value().nbytes()));
    return bytes;
  }

  [[nodiscard]] at::Device autoencoder_device() const {
    return assembly_.devices.dry(assembly_.devices.of(recipe_.autoencoder));
  }

  /// On the device with this index.
  [[nodiscard]] int64_t trained_bytes(std::size_t index) const {
    int64_t bytes = 0;
    for (const Parameter* parameter : loaded_.trained)
      if (parameter->value().device() == dry_device(index)) bytes += static_cast<int64_t>(parameter->value().nbytes());
    return bytes;
  }

  assembly::Assembly& assembly_;
  const recipe::Recipe& recipe_;
  std::vector<double> speeds_;
  assembly::LoadedModel loaded_;
  Conditioning conditioning_;
  int64_t text_bytes_ = 0;                ///< of one embedding
  int64_t factor_ = 0, batch_bytes_ = 0;  ///< batch: a micro-batch, read from the cache into the host's memory
  std::optional<int64_t> files_;          ///< of the data set
  RunData data_;
  std::string notes_;            ///< what was taken for granted
  std::vector<int64_t> before_;  ///< held on each device, not the run's
};

/// What Group::mean and OverlappedAverage hold at their highest. Of a piece: itself, padded, the slices that came, and
/// the mean. Where devices compute, the means of all pieces stay until the backward is done. Without a lane of its own
/// a device's piece goes on by way of the host.
int64_t exchange_bytes(int64_t gradients, at::Device device) {
  const int64_t piece = std::min(gradients, distributed::kMostElements * static_cast<int64_t>(sizeof(float)));
  if (device.is_cuda()) return gradients + 4 * piece;
  return device.is_cpu() ? 4 * piece : piece;
}

}  // namespace

std::optional<int64_t> Plan::ram() const {
  int64_t most = 0;
  for (const PhasePlan& phase : phases) {
    if (!phase.bytes) return std::nullopt;
    most = std::max(most, phase.host + (*phase.bytes)[host]);
  }
  return program + most;
}

Plan make_plan(assembly::Assembly& assembly, const std::vector<double>& speeds, int ranks) {
  planner::install_byte_counter();
  Plan plan = Planner(assembly, speeds).plan();
  plan.rank = {ranks, assembly.share};
  for (std::size_t i = 0; i < plan.devices.size(); ++i) {
    DevicePlan& device = plan.devices[i];
    plan.rank.reduced += device.step.gradients;
    if (ranks == 1) continue;
    device.exchange = exchange_bytes(device.step.gradients, assembly.devices.training()[i]);
    for (PhasePlan& phase : plan.phases)
      if (phase.name == "train") (*phase.bytes)[i] += device.exchange;
  }
  return plan;
}

}  // namespace trainer::planning
