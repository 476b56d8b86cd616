// The sampler against diffusers' pipelines: every step, the final latents and the decoded picture.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <flux2/layout.hpp>
#include <flux2/model.hpp>
#include <flux2_vae/autoencoder.hpp>
#include <sampling/sample.hpp>
#include <support/parity.hpp>
#include <support/simple_builder.hpp>

#include <algorithm>
#include <cctype>

namespace trainer::test {
namespace {

constexpr double kLimit = 2e-5;

class SamplingParity : public ::testing::TestWithParam<std::filesystem::path> {
 protected:
  SamplingParity() {
    const auto source = flux2::map_weights(std::make_shared<MemorySource>(
        load_tensors(GetParam() / "model/transformer/diffusion_pytorch_model.safetensors"), "transformer"));
    const Options options("model", Table{{"round_time", Value{false}}});
    const std::string config = file_text(GetParam() / "model/transformer/config.json");
    trainer::testing::SimpleBuilder build(*source, at::kFloat);
    model_ = std::make_unique<flux2::Flux2Model>(ModelContext{options, *source, config, build});
    const Options vae_options("autoencoder", Table{{"tiling", Value{std::string("auto")}}});
    vae_ = std::make_unique<flux2_vae::Flux2Autoencoder>(
        EncoderContext{vae_options,
                       std::make_shared<MemorySource>(
                           load_tensors(GetParam() / "model/vae/diffusion_pytorch_model.safetensors"), "vae"),
                       file_text(GetParam() / "model/vae/config.json"), nullptr, at::kFloat, at::kCPU});
  }

  void expect(const at::Tensor& got, const std::string& key) {
    const double error = max_error(got, data_.at(key));
    std::printf("  %-24s max %.2e\n", key.c_str(), error);
    EXPECT_LE(error, kLimit) << key;
  }

  /// Samples with the data's noise and prompt and compares with the tensors "<prefix>step.i" and so on.
  void compare(const std::string& prefix, sampling::Conditioning conditioning, double guidance) {
    const DiffusionTraits& traits = *model_->diffusion();
    const at::Tensor noise = data_.at("latents").unsqueeze(2);
    const at::Tensor& want = data_.at(prefix + "sigmas");
    const std::vector<double> sigmas = traits.sigmas(traits.tokens(1, noise.size(3), noise.size(4)), want.size(0) - 1);
    for (std::size_t i = 0; i < sigmas.size(); ++i) EXPECT_NEAR(sigmas[i], want[i].item<double>(), 1e-6);
    const auto packed = [](const at::Tensor& latents) { return latents.flatten(2).transpose(1, 2); };
    const at::Tensor final = sampling::euler(
        sampling::guided_velocity(sampling::model_forward(*model_), traits, std::move(conditioning), guidance), sigmas,
        noise, [&](int64_t done, int64_t, const at::Tensor& latents) {
          expect(packed(latents), prefix + "step." + std::to_string(done - 1));
        });
    // Flux2Pipeline returns the latents packed, Flux2KleinPipeline denormalised and unfolded.
    const bool unfolded = data_.at(prefix + "final").dim() == 4;
    expect(unfolded ? vae_->denormalise(final.squeeze(2)) : packed(final), prefix + "final");
    const at::Tensor image = vae_->decode(final).squeeze(2);
    expect(image, prefix + "image");
    expect((image / 2 + 0.5).clamp(0, 1), prefix + "image01");
  }

  NamedTensors data_ = load_tensors(GetParam() / "sample.safetensors");
  std::unique_ptr<flux2::Flux2Model> model_;
  std::unique_ptr<flux2_vae::Flux2Autoencoder> vae_;
};

TEST_P(SamplingParity, GuidedSample) {
  sampling::Conditioning conditioning{{{"prompt_embeds", data_.at("prompt_embeds")}}, {}};
  EXPECT_EQ(model_->diffusion()->guidance_embedded, data_.count("negative_prompt_embeds") == 0);
  if (data_.count("negative_prompt_embeds") != 0) {
    conditioning.negative.emplace("prompt_embeds", data_.at("negative_prompt_embeds"));
  }
  compare("", conditioning, 4.0);
}

TEST_P(SamplingParity, DistilledSampleWithoutGuidance) {
  if (data_.count("distilled.final") == 0) GTEST_SKIP() << "guidance is embedded in this model";
  compare("distilled.", {{{"prompt_embeds", data_.at("prompt_embeds")}}, {}}, 1.0);
}

INSTANTIATE_TEST_SUITE_P(Dirs, SamplingParity, ::testing::ValuesIn(parity_dirs()), [](const auto& info) {
  std::string name = info.param.filename().string();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace trainer::test
