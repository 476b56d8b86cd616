#include <ATen/ops/from_blob.h>
#include <base/files.hpp>
#include <base/heartbeat.hpp>
#include <base/log.hpp>
#include <base/unfinished.hpp>
#include <data/image.hpp>
#include <execution/forward.hpp>
#include <nlohmann/json.hpp>
#include <sampling/grid.hpp>
#include <sampling/pixels.hpp>
#include <sampling/samples.hpp>

#include <cstdio>

namespace trainer::sampling {
namespace {

constexpr const char* kDescription = "samples.json";
constexpr const char* kStepFolder = "step-";

std::span<const uint8_t> bytes_of(const at::Tensor& hwc) {
  return {hwc.const_data_ptr<uint8_t>(), static_cast<std::size_t>(hwc.numel())};
}

at::Tensor decode_one(Autoencoder& autoencoder, const at::Tensor& latents) {
  beat();
  return sampling::to_rgb8(autoencoder.decode(latents)).front();
}

/// What the pictures of a step show; pictures of other prompts or settings are not mixed with them.
std::string description(const SamplePlan& plan) {
  const recipe::Sample& settings = plan.settings;
  return nlohmann::ordered_json{{"prompts", plan.prompts},       {"negative_prompt", settings.negative_prompt},
                                {"size", settings.size},         {"steps", settings.steps},
                                {"guidance", settings.guidance}, {"seeds", settings.seeds}}
             .dump(1) +
         "\n";
}

}  // namespace

Pictures draw(assembly::LoadedModel& loaded, const SamplePlan& plan,
              const std::function<std::unique_ptr<Autoencoder>()>& decoder, const DrawWatch& watch) {
  const auto stop_if_asked = [&] {
    if (watch.stop_if_asked) watch.stop_if_asked();
  };
  const recipe::Sample& settings = plan.settings;
  const auto total = static_cast<int64_t>(plan.prompts.size() * settings.seeds.size());
  const sampling::Forward forward = [&](const NamedTensors& inputs) {
    stop_if_asked();
    return execution::predict(*loaded.model, inputs, loaded.memory, loaded.placement);
  };
  std::vector<at::Tensor> latents;
  for (std::size_t prompt = 0; prompt < plan.prompts.size(); ++prompt) {
    for (const int64_t seed : settings.seeds) {
      sampling::SampleRequest request;
      request.conditioning = plan.conditioning[prompt];
      request.width = settings.size[0] / plan.factor;
      request.height = settings.size[1] / plan.factor;
      request.steps = settings.steps;
      request.guidance = settings.guidance;
      request.seed = static_cast<uint64_t>(seed);
      request.index = prompt;
      latents.push_back(
          sampling::sample_latents(forward, loaded.model->diffusion(), request, loaded.placement.prologue));
      if (watch.progress) watch.progress(static_cast<int64_t>(latents.size()), total);
    }
  }
  // Only now: the decoder's activations and the model's are never needed at once.
  stop_if_asked();
  const std::unique_ptr<Autoencoder> autoencoder = decoder();
  Pictures pictures(plan.prompts.size());
  for (std::size_t i = 0; i < latents.size(); ++i) {
    stop_if_asked();
    pictures[i / settings.seeds.size()].push_back(
        plugin::guard("autoencoder", "decode", [&] { return decode_one(*autoencoder, latents[i]); }));
  }
  return pictures;
}

std::filesystem::path SampleFolder::step_folder(int64_t step) const {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%010lld", static_cast<long long>(step));
  return folder_ / (std::string(kStepFolder) + digits);
}

std::filesystem::path SampleFolder::file(int64_t step, std::size_t prompt, int64_t seed) const {
  char name[32];
  std::snprintf(name, sizeof name, "p%02zu-seed%lld.png", prompt, static_cast<long long>(seed));
  return step_folder(step) / name;
}

void SampleFolder::save(int64_t step, const SamplePlan& plan, const Pictures& pictures) const {
  make_folders(step_folder(step));
  for (std::size_t prompt = 0; prompt < pictures.size(); ++prompt)
    for (std::size_t i = 0; i < pictures[prompt].size(); ++i) {
      const at::Tensor hwc = pictures[prompt][i].permute({1, 2, 0}).contiguous();
      data::write_png(file(step, prompt, plan.settings.seeds[i]), bytes_of(hwc), hwc.size(1), hwc.size(0));
    }
  write_file_atomically(step_folder(step) / kDescription, description(plan));
}

void SampleFolder::remove_unfinished() const {
  trainer::remove_unfinished(folder_);
  std::error_code failed, ignored;
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(folder_, ignored))) return;
  for (std::filesystem::directory_iterator it(folder_, failed); !failed && it != std::filesystem::directory_iterator();
       it.increment(failed))
    if (it->path().filename().string().starts_with(kStepFolder)) trainer::remove_unfinished(it->path());
}

Pictures SampleFolder::load(int64_t step, const SamplePlan& plan) const {
  try {
    return read(step, plan);
  } catch (const Error& error) {  // pictures are no reason to end a run
    log_warning("the samples of step " + std::to_string(step) + " cannot be used: " + error.what());
    return {};
  }
}

bool SampleFolder::may_hold(int64_t step, const SamplePlan& plan) const {
  const std::filesystem::path about = step_folder(step) / kDescription;
  try {
    return !std::filesystem::exists(about) || read_file(about, 1 << 20, "samples") == description(plan);
  } catch (const Error&) {  // of whatever it was
    return false;
  }
}

Pictures SampleFolder::read(int64_t step, const SamplePlan& plan) const {
  const std::filesystem::path about = step_folder(step) / kDescription;
  if (!std::filesystem::exists(about) || read_file(about, 1 << 20, "samples") != description(plan)) return {};
  Pictures pictures(plan.prompts.size());
  for (std::size_t prompt = 0; prompt < plan.prompts.size(); ++prompt)
    for (const int64_t seed : plan.settings.seeds) {
      const std::filesystem::path path = file(step, prompt, seed);
      if (!std::filesystem::exists(path)) return {};
      data::Image image = data::load_image(path, plan.settings.size[0], plan.settings.size[1]);
      pictures[prompt].push_back(
          at::from_blob(image.rgb.data(), {image.height, image.width, 3}, at::kByte).permute({2, 0, 1}).contiguous());
    }
  return pictures;
}

std::filesystem::path write_grid(const std::filesystem::path& file, const SamplePlan& plan,
                                 const std::vector<std::pair<std::string, Pictures>>& columns) {
  std::vector<std::string> titles;
  for (const auto& [title, pictures] : columns)
    for (const int64_t seed : plan.settings.seeds)
      titles.push_back(plan.settings.seeds.size() == 1 ? title : title + ", seed " + std::to_string(seed));
  std::vector<sampling::GridRow> rows;
  for (std::size_t prompt = 0; prompt < plan.prompts.size(); ++prompt) {
    sampling::GridRow row{plan.prompts[prompt], {}};
    for (const auto& [title, pictures] : columns)
      row.images.insert(row.images.end(), pictures[prompt].begin(), pictures[prompt].end());
    rows.push_back(std::move(row));
  }
  const at::Tensor grid = sampling::make_grid(rows, titles);
  make_folders(file.parent_path());
  data::write_png(file, bytes_of(grid), grid.size(1), grid.size(0));
  return file;
}

}  // namespace trainer::sampling
