#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <metrics/meter.hpp>
#include <planner/byte_counter.hpp>
#include <planner/shape_kernels.hpp>
#include <sampling/guidance.hpp>
#include <train/forward.hpp>
#include <train/planning/plan.hpp>
#include <train/planning/recipe_budget.hpp>

#include <algorithm>
#include <functional>

namespace trainer::train {
namespace {

constexpr int64_t kUsualFactor = 16, kUsualTokens = 512;
constexpr std::size_t kCaptions = 4;  // encoded together; each more adds its result alone
const at::Device kDry = at::kMeta;

at::Tensor shaped(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  return at::empty(shape, at::TensorOptions().dtype(dtype).device(kDry));
}

int64_t held(at::Device device) { return planner::bytes_in_use(device).current; }

/// Peaks of one phase; `work` may fail for want of files or shape kernels, which leaves the phase open.
PhasePlan phase(const std::string& name, const std::function<std::string()>& work) {
  PhasePlan plan{name, {}, 0, {}};
  const planner::PeakMark device(kDry), host(at::kCPU);
  try {
    plan.note = planner::on_shapes(name, work);
    plan.device = device.above();
    plan.host = host.above();
  } catch (const c10::Error& error) {
    plan.note = error.what_without_backtrace();
  } catch (const std::exception& error) {
    plan.note = error.what();
  }
  plan.note = plan.note.substr(0, plan.note.find('\n'));
  return plan;
}

/// Everything that the phases share.
class Planner {
 public:
  explicit Planner(Assembly& assembly) : assembly_(assembly), recipe_(assembly.recipe()) {}

  Plan plan() {
    Plan plan;
    plan.on_host = assembly_.devices().front().is_cpu();
    learn_factor();
    PhasePlan cache = plan_cache();
    const planner::PeakMark loading(kDry);
    loaded_ = planner::on_shapes("the model", [&] { return assembly_.load_model(ModelUse::train); });
    const PhasePlan load{"load", loading.above(), 0, {}};
    DevicePlan device = plan_training(plan);
    const PhasePlan train{"train", device.total(), load.host, {}};
    const PhasePlan sample = plan_samples(device.resident());
    // Parameters are written from where they are; an export copies them, scaled.
    const PhasePlan save{"save", device.resident() + trained_bytes(), 0, {}};
    plan.model = loaded_.model->describe();
    plan.devices.push_back(std::move(device));
    plan.phases = {cache, load, train, sample, save};
    plan.program = metrics::memory_use().resident;
    return plan;
  }

 private:
  void learn_factor() {
    if (!recipe_.pictures()) return;
    static_cast<void>(phase("autoencoder", [&] {
      factor_ = assembly_.autoencoder()->spatial_factor();
      return std::string();
    }));
  }

  [[nodiscard]] int64_t text_tokens() const {
    const Table& values = recipe_.text_encoder.options.values();
    const auto it = values.find("max_tokens");
    return it != values.end() && it->second.get_if<int64_t>() != nullptr ? *it->second.get_if<int64_t>() : kUsualTokens;
  }

  /// What neither latents nor the objective give the model, of one sample.
  [[nodiscard]] std::vector<TensorInfo> conditioning(const Objective& objective) const {
    const std::vector<std::string> provided = objective.provides();
    std::vector<TensorInfo> list;
    for (const InputSpec& input : loaded_.model->inputs()) {
      if (!input.required || std::find(provided.begin(), provided.end(), input.name) != provided.end()) continue;
      if (!input.shape)
        throw Error(ExitCode::failed, "the model does not declare the shape of its input \"" + input.name +
                                          "\", so no batch is known before the cache is made");
      std::vector<int64_t> shape = *input.shape;
      for (int64_t& side : shape) side = side < 0 ? text_tokens() : side;
      list.push_back({input.name, input.below > 0 ? at::kLong : at::kBFloat16, std::move(shape)});
    }
    return list;
  }

  DevicePlan plan_training(Plan& plan) {
    DevicePlan device;
    for (const std::string& name : recipe_.placement.devices)
      device.device += (device.device.empty() ? "" : " and ") + name;
    if (loaded_.adapter) device.adapter = trained_bytes();
    device.weights = held(kDry) - before_ - device.adapter;
    const auto objective = assembly_.objective();
    const recipe::Train& train = recipe_.train;
    const int64_t micro_batches = train.batch_size / train.micro_batch_size;
    const data::Bucket bucket = largest_of(recipe_, factor_);
    BatchShape batch{train.micro_batch_size, {}, conditioning(*objective)};
    if (const DiffusionTraits* traits = loaded_.model->diffusion())
      batch.latents = {traits->latent_channels, 1, bucket.height / factor_, bucket.width / factor_};
    plan.batch = std::to_string(train.micro_batch_size) + " sample(s) of " + bucket.text() + " at a time, " +
                 std::to_string(micro_batches) + " time(s) a step, " + std::to_string(text_tokens()) + " text tokens";
    const DryParts parts{*loaded_.model,
                         *objective,
                         loaded_.memory,
                         loaded_.placement,
                         loaded_.trained,
                         {},
                         recipe_.train.ema_decay > 0,
                         train.max_grad_norm,
                         micro_batches,
                         std::move(batch)};
    device.step = dry_step(parts);
    plan.blocks = dry_blocks(parts);
    return device;
  }

  /// Captions and pictures through the encoders, one after the other.
  PhasePlan plan_cache() {
    PhasePlan text = phase("cache", [&] {
      const at::NoGradGuard no_grad;
      const std::vector<std::string> captions(kCaptions, "a caption");
      static_cast<void>(assembly_.text_encoder()->encode(captions));
      return std::string();
    });
    if (!recipe_.pictures()) return text;
    const PhasePlan pictures = phase("cache", [&] {
      const at::NoGradGuard no_grad;
      const data::Bucket bucket = largest_of(recipe_, factor_);
      static_cast<void>(assembly_.autoencoder()->encode(shaped({1, 3, 1, bucket.height, bucket.width}, at::kFloat)));
      return std::string();
    });
    if (!text.device || !pictures.device) {
      text.note = !text.device ? "text encoder: " + text.note : "autoencoder: " + pictures.note;
      text.device.reset();
      return text;
    }
    text.device = std::max(*text.device, *pictures.device);
    text.host = std::max(text.host, pictures.host);
    return text;
  }

  /// Drawing: the model without gradients, then the autoencoder beside it.
  PhasePlan plan_samples(int64_t resident) {
    if (recipe_.sample.prompts.empty()) return {"sample", 0, 0, "no prompts"};
    PhasePlan plan = phase("sample", [&] {
      const at::NoGradGuard no_grad;
      const DiffusionTraits* traits = loaded_.model->diffusion();
      const std::vector<int64_t>& size = recipe_.sample.size;
      const at::Tensor latents =
          shaped({1, traits->latent_channels, 1, size[1] / factor_, size[0] / factor_}, at::kFloat);
      draw_once(*traits, latents);
      static_cast<void>(assembly_.autoencoder()->decode(latents));
      return std::string();
    });
    if (plan.device) *plan.device += resident;
    return plan;
  }

  void draw_once(const DiffusionTraits& traits, const at::Tensor& latents) {
    NamedTensors inputs{{"latents", latents}, {"timestep", shaped({1}, at::kFloat)}};
    if (traits.guidance_embedded) inputs["guidance"] = shaped({1}, at::kFloat);
    for (const TensorInfo& info : conditioning(*assembly_.objective())) {
      std::vector<int64_t> shape = info.shape;
      shape.insert(shape.begin(), 1);
      inputs[info.name] = shaped(shape, info.dtype);
    }
    at::Tensor first = predict(*loaded_.model, inputs, loaded_.memory);
    if (sampling::needs_negative(traits, recipe_.sample.guidance))
      static_cast<void>(predict(*loaded_.model, inputs, loaded_.memory));
  }

  [[nodiscard]] int64_t trained_bytes() const {
    int64_t bytes = 0;
    for (const Parameter* parameter : loaded_.trained) bytes += static_cast<int64_t>(parameter->value().nbytes());
    return bytes;
  }

  Assembly& assembly_;
  const recipe::Recipe& recipe_;
  LoadedModel loaded_;
  int64_t factor_ = kUsualFactor;
  int64_t before_ = held(kDry);  ///< not the run's
};

}  // namespace

int64_t Plan::ram() const {
  int64_t most = 0;
  for (const PhasePlan& phase : phases) most = std::max(most, phase.host + (on_host ? phase.device.value_or(0) : 0));
  return program + most;
}

Plan make_plan(Assembly& assembly) {
  planner::install_byte_counter();
  return Planner(assembly).plan();
}

}  // namespace trainer::train
