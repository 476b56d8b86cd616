/// @file The exported adapter against the portable file that diffusers loads: same names, same values; and back.
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <adapter/inject.hpp>
#include <execution/forward.hpp>
#include <run/export.hpp>
#include <support/components.hpp>

#include "fixture.hpp"

namespace trainer::parity {
namespace {

adapter::ReadAdapter lora_in(const assembly::LoadedModel& loaded, const std::filesystem::path& file) {
  return adapter::as_adapter(adapter::read_lora(file, loaded.lora_family), "lora");
}

/// A LoRA that takes all from its file.
std::unique_ptr<Adapter> lora_of_file() {
  return testing::lora({{"rank", {}}, {"alpha", {}}, {"init", {std::string("file")}}});
}

void apply(assembly::LoadedModel& loaded, const std::filesystem::path& file) {
  run::apply_adapter(loaded, *lora_of_file(), lora_in(loaded, file), at::kFloat);
}

class Portable : public ::testing::TestWithParam<std::filesystem::path> {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  assembly::LoadedModel trained(const std::string& kind) const {
    assembly::LoadedModel loaded = load_transformer(GetParam());
    const nlohmann::json& spec = spec_.at(kind);
    attach_lora(loaded, spec.at("rank"), spec.at("alpha"), spec.at("target_modules"), tensors_, kind + ".final.");
    return loaded;
  }
  NamedTensors probe() const {
    NamedTensors inputs{{"latents", latents_of(tensors_.at("data.latents")[0], grid_)},
                        {"prompt_embeds", tensors_.at("data.prompt_embeds")[0]},
                        {"timestep", tensors_.at("data.sigma")[0]}};
    if (tensors_.contains("data.guidance")) inputs["guidance"] = tensors_.at("data.guidance")[0];
    return inputs;
  }
  at::Tensor prediction(assembly::LoadedModel& loaded) const {
    return tokens_of(execution::predict(*loaded.model, probe(), loaded.memory));
  }
  std::filesystem::path reference_file(const std::string& kind) const {
    return GetParam() / "lora_out" / (kind == "default" ? "" : kind) / "portable.safetensors";
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("trainer-portable-" + std::to_string(::getpid()));
  const NamedTensors tensors_ = test::load_tensors(GetParam() / "lora_train.safetensors");
  const nlohmann::json spec_ = test::file_json(GetParam() / "lora_train.json");
  const nlohmann::json grid_ = test::file_json(GetParam() / "parity.json").at("sizes").at("train_grid");
};

TEST_P(Portable, ExportEqualsTheFileOfDiffusers) {
  for (const std::string kind : {"default", "all_linears"}) {
    const assembly::LoadedModel loaded = trained(kind);
    const NamedTensors ours = test::load_tensors(run::export_trained(loaded, folder_ / "lora.safetensors", 10));
    const NamedTensors reference = test::load_tensors(reference_file(kind));
    double worst = 0;
    for (const auto& [name, tensor] : reference) {
      ASSERT_TRUE(ours.contains(name)) << name;
      worst = std::max(worst, test::max_error(ours.at(name), tensor));
      EXPECT_EQ(ours.at(name).scalar_type(), tensor.scalar_type()) << name;
    }
    EXPECT_LE(measured(kind + " export", worst), 1e-6);
    EXPECT_EQ(ours.size(), reference.size());
  }
}

TEST_P(Portable, ProbesWithTheReferenceAdapter) {
  for (const std::string kind : {"default", "all_linears"}) {
    assembly::LoadedModel loaded = trained(kind);
    const at::Tensor with = prediction(loaded);
    for (const Linear& layer : loaded.adapted) layer.state().adapter_enabled = false;
    const at::Tensor without = prediction(loaded);
    EXPECT_LE(measured(kind + " probe.base", test::max_error(without, tensors_.at(kind + ".probe.base"))), 1e-5);
    EXPECT_LE(measured(kind + " probe.trained", test::max_error(with, tensors_.at(kind + ".probe.trained"))), 1e-5);
    EXPECT_GT(test::max_error(with, without), 1e-3) << "training changed the output";
  }
}

TEST_P(Portable, FileOfDiffusersLoadsBack) {
  for (const std::string kind : {"default", "all_linears"}) {
    assembly::LoadedModel loaded = load_transformer(GetParam());
    apply(loaded, reference_file(kind));
    EXPECT_LE(
        measured(kind + " loaded back", test::max_error(prediction(loaded), tensors_.at(kind + ".probe.trained"))),
        1e-5);
  }
}

/// Training that starts from a file predicts, before its first step, what the file does: bit for bit.
TEST_P(Portable, StartingFromAFileGivesItsPrediction) {
  for (const std::string kind : {"default", "all_linears"}) {
    assembly::LoadedModel applied = load_transformer(GetParam()), started = load_transformer(GetParam());
    apply(applied, reference_file(kind));
    started.adapter = lora_of_file();
    const adapter::ReadAdapter read = lora_in(started, reference_file(kind));
    started.adapter->start_from(read.file);
    started.adapted = adapter::targeted(*started.adapter, *started.model, started.inventory.linears, read.layers());
    started.trained = adapter::inject(*started.adapter, started.adapted, 1, at::kCPU);
    EXPECT_EQ(started.trained.size(), 2 * started.adapted.size());
    EXPECT_TRUE(test::same_bits(prediction(applied), prediction(started))) << kind;
    const auto file = run::export_trained(started, folder_ / "again.safetensors", 0);
    const NamedTensors first = test::load_tensors(reference_file(kind)), again = test::load_tensors(file);
    for (const auto& [name, tensor] : first) EXPECT_TRUE(test::same_bits(tensor, again.at(name))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, Portable, ::testing::ValuesIn(test::parity_dirs()), test::DirName{});

}  // namespace
}  // namespace trainer::parity
