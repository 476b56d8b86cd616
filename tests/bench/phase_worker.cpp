/// @file Our side of tools/bench --phases: the parts of a run besides its training step, driven over stdin.
///   phase_worker SETTINGS       JSON: recipe, set (overrides), folder (to work in), captions (file, one a line),
///   threads,
///                               libtorch, images, plugins
/// Prints "ready 0". Each input line names a phase and is answered by "WALL_SECONDS CPU_SECONDS":
///   load      the model from its files, with a new adapter
///   captions  text encoder from its files, every caption encoded and stored
///   pictures  the data set scanned, autoencoder from its files, every picture decoded, encoded and stored
///   sample    one picture of the recipe's first prompt, latents and decoding
///   save      a checkpoint (adapter and optimiser) and the adapter's file, both on disk when it returns
#include <ATen/Parallel.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <checkpoint/store.hpp>
#include <checkpoint/train_state.hpp>
#include <data/image.hpp>
#include <nlohmann/json.hpp>
#include <planner/byte_counter.hpp>
#include <preparation/cache_phase.hpp>
#include <recipe/load.hpp>
#include <run/export.hpp>

#include <fstream>

#include "worker.hpp"

namespace {

namespace fs = std::filesystem;
using namespace trainer;

std::vector<std::string> lines_of(const std::string& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

recipe::Recipe recipe_of(const nlohmann::json& settings, const plugin::Loader& plugins) {
  auto overrides = settings.at("set").get<std::vector<std::string>>();
  overrides.push_back("cache.folder=" + settings.at("folder").get<std::string>() + "/cache");
  return recipe::load(settings.at("recipe"), overrides, plugin::schemas(plugins.found()));
}

std::vector<plugin::SearchFolder> plugins_of(const nlohmann::json& settings) {
  std::vector<plugin::SearchFolder> folders;
  for (const std::string folder : settings.at("plugins")) folders.push_back({folder, "build tree"});
  return folders;
}

class Phases {
 public:
  explicit Phases(const nlohmann::json& settings)
      : folder_(settings.at("folder").get<std::string>()),
        captions_(lines_of(settings.at("captions"))),
        plugins_(plugins_of(settings)),
        assembly_(recipe_of(settings, plugins_), plugins_,
                  {.libtorch = settings.at("libtorch").get<std::string>(), .nccl = {}}),
        console_(preparation::console_options(/*quiet=*/true)),
        checkpoints_(folder_ / "run", "bench"),
        samples_(preparation::prepare_samples(assembly_, {assembly_.recipe.sample.prompts.front()}, console_)),
        trained_(load()),
        optimizer_(trained_.trained, {}) {
    samples_.settings.seeds.resize(1);
    for (const Parameter* parameter : trained_.trained)
      parameter->value().mutable_grad() = at::zeros_like(parameter->value());
    optimizer_.step(1e-4);  // its states are there from the first step on
  }

  /// What comes before the phase and is not timed.
  void prepare_for(const std::string& phase) const {
    if (phase == "captions") fs::remove_all(folder_ / "cache/text");
    if (phase == "pictures") fs::remove_all(folder_ / "cache/latents");
  }

  /// Waits until the device has done all that it was given.
  void finish() const {
    if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }

  void run(const std::string& phase) {
    if (phase == "load") {
      load();
    } else if (phase == "captions") {
      preparation::prepare_samples(assembly_, captions_, console_);
    } else if (phase == "pictures") {
      preparation::prepare(assembly_, console_);
    } else if (phase == "sample") {
      sampling::draw(trained_, samples_, [this] { return assembly_.encoders.autoencoder(); }, {});
    } else if (phase == "save") {
      checkpoint::Progress progress;
      progress.step = ++step_;
      checkpoints_.save(step_, checkpoint::capture({trained_.trained, optimizer_, nullptr}, progress), {});
      run::export_trained(trained_, folder_ / "lora.safetensors", step_);
    } else {
      throw Error(ExitCode::bad_input, "no phase \"" + phase + "\"");
    }
  }

 private:
  assembly::LoadedModel load() {
    const auto placement = assembly_.components.placement();
    return assembly_.models.load(assembly_.strategies.stack(), {assembly::Weights::file, placement.get()});
  }

  fs::path folder_;
  std::vector<std::string> captions_;
  plugin::Loader plugins_;
  assembly::Assembly assembly_;
  metrics::Console console_;
  checkpoint::Store checkpoints_;
  sampling::SamplePlan samples_;
  assembly::LoadedModel trained_;
  optim::AdamW optimizer_;
  at::Device device_ = trained_.trained.front()->value().device();
  int64_t step_ = 0;
};

void measure(const nlohmann::json& settings) {
  if (const int threads = settings.at("threads"); threads > 0) at::set_num_threads(threads);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  data::set_image_module(settings.at("images").get<std::string>());
  planner::install_byte_counter();  // as the program does
  Phases phases(settings);
  std::printf("ready 0\n");
  bench::serve([&](const std::string& phase) {
    phases.prepare_for(phase);
    const bench::Seconds seconds = bench::timed([&] {
      phases.run(phase);
      phases.finish();
    });
    std::printf("%.6f %.6f\n", seconds.wall, seconds.cpu);
  });
}

}  // namespace

int main(int argc, char** argv) { return bench::worker_main(argc, argv, measure); }
