/// @file One side of tools/bench_step: our LoRA training step on a model folder, driven over stdin so that the two
/// sides' steps alternate. Protocol: prints "ready PARAMETERS"; for each input line runs one step and prints
/// "WALL_SECONDS CPU_SECONDS LOSS PEAK_RSS_BYTES"; ends at end of input.
///   step_worker MODEL_FOLDER fp32|bf16 on|off BATCH IMAGE_SIDE TEXT_TOKENS RANK THREADS
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <adapter/inject.hpp>
#include <adapter/lora.hpp>
#include <c10/core/AutogradState.h>
#include <flux2/model.hpp>
#include <metrics/meter.hpp>
#include <nlohmann/json.hpp>
#include <objective/flow_matching.hpp>
#include <optim/adamw.hpp>
#include <plugin/registry.hpp>
#include <train/keyed_random.hpp>
#include <train/model_builder.hpp>
#include <train/trainer.hpp>
#include <weights/model_files.hpp>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <iostream>

namespace {

using namespace trainer;

/// Synthetic samples of one shape, the same every step.
class OneBatch final : public train::BatchSource {
 public:
  OneBatch(int64_t batch, int64_t channels, int64_t side, int64_t tokens, int64_t width, at::ScalarType dtype) {
    const auto normal = [](uint64_t sample, at::IntArrayRef shape) {
      return train::keyed_normal(KeyedRng(1, RngStream::synthetic, 0, sample), shape);
    };
    batch_.latents = normal(0, {batch, channels, 1, side, side});
    batch_.conditioning["prompt_embeds"] = normal(1, {batch, tokens, width}).to(dtype);
    for (int64_t b = 0; b < batch; ++b) batch_.sample_keys.push_back(static_cast<uint64_t>(b));
  }
  int64_t micro_batches() const override { return 1; }
  Batch batch(int64_t, int64_t) override { return batch_; }
  std::vector<std::string> files(int64_t, int64_t) const override { return {"synthetic"}; }

 private:
  Batch batch_;
};

class Recompute final : public MemoryStrategy, public RecomputePolicy {
 public:
  explicit Recompute(bool on) : on_(on) {}
  RecomputePolicy* recompute_policy() override { return this; }
  CheckpointOptions choose(const Site&) override { return {.recompute = on_}; }

 private:
  bool on_;
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Options objective_options() {
  return {"objective", Table{{"timesteps.distribution", {std::string("logit_normal")}},
                             {"timesteps.mean", {0.0}},
                             {"timesteps.std", {1.0}},
                             {"timesteps.scale", {1.29}},
                             {"timesteps.uniform_fraction", {0.0}},
                             {"timesteps.grid", {int64_t{0}}},
                             {"timesteps.shift", {std::string("none")}},
                             {"weighting", {std::string("none")}},
                             {"guidance", {1.0}}}};
}

int run(char** argv) {
  const std::string folder = argv[1];
  const at::ScalarType dtype = std::string(argv[2]) == "bf16" ? at::kBFloat16 : at::kFloat;
  const int64_t batch = std::atoll(argv[4]), side = std::atoll(argv[5]), tokens = std::atoll(argv[6]);
  const int64_t rank = std::atoll(argv[7]);
  at::set_num_threads(std::atoi(argv[8]));
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);

  const auto files = weights::ModelFiles::open(folder);
  train::SourceBuilder builder(*files, {.dtype = dtype});
  const std::string config = files->config().value_or("");
  const Options none("model", Table{{"round_time", {false}}});
  flux2::Flux2Model model(ModelContext{none, *files, config, builder});
  plugin::Registry registry;
  plugin::register_builtin(registry, adapter::register_lora);
  plugin::register_builtin(registry, objective::register_flow_matching);
  const Options lora("adapter", Table{{"rank", {rank}},
                                      {"alpha", {static_cast<double>(rank)}},
                                      {"init", {std::string("kaiming")}},
                                      {"targets", {std::string("default")}}});
  const auto adapter = registry.adapters.at("lora").create(lora);
  const auto layers = adapter::select(builder.inventory().linears, model.default_targets());
  const auto trained = adapter::inject(*adapter, layers, 0, at::kCPU);
  const auto objective = registry.objectives.at("flow_matching").create(objective_options());
  std::vector<train::MemoryStack::Named> strategies;
  strategies.push_back({"bench", std::make_unique<Recompute>(std::string(argv[3]) == "on")});
  const train::MemoryStack memory(std::move(strategies));
  PlacementPlan placement;
  placement.schedule = {{Pass::forward, 0, 0}, {Pass::backward, 0, 0}};
  const train::KeyedRandom random(0);
  const nlohmann::json dims = nlohmann::json::parse(config);
  OneBatch data(batch, dims.at("in_channels").get<int64_t>(), side, tokens, dims.at("joint_attention_dim").get<int64_t>(), dtype);
  optim::AdamW optimizer(trained, {});
  train::Trainer trainer(train::Parts{model, *objective, memory, placement, random, data, optimizer, nullptr,
                                      {.kind = "constant", .lr = 1e-4}, /*max_grad_norm=*/0.0},
                         0);
  std::printf("ready %lld\n", static_cast<long long>(builder.inventory().parameter_count));
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const auto begin = std::chrono::steady_clock::now();
    const double cpu = cpu_seconds();
    const train::StepReport report = trainer.step();
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%.6f %.6f %.8f %lld\n", wall, cpu_seconds() - cpu, report.loss,
                static_cast<long long>(metrics::memory_use().peak));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) {
    std::fprintf(stderr, "usage: step_worker MODEL_FOLDER fp32|bf16 on|off BATCH IMAGE_SIDE TEXT_TOKENS RANK THREADS\n");
    return 2;
  }
  try {
    return run(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
