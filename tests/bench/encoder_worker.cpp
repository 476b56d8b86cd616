/// @file Our side of tools/bench --encoders: one caption through the layers of a text encoder, or one picture through
/// the autoencoder, driven over stdin. The weights are random and in memory.
///   encoder_worker SETTINGS     JSON: part ("qwen3", "mistral", "encode", "decode"), dtype ("fp32", "bf16"), threads,
///                               matmul ("auto", "mkl"); of a text encoder config (as in config.json), layers (to run),
///                               tokens (of the caption); of a picture width and height
/// Prints "ready PARAMETERS". Each input line is answered by "WALL_SECONDS CPU_SECONDS".
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <encoder.hpp>
#include <flux2_vae/autoencoder.hpp>
#include <lm_config.hpp>
#include <matmul/matmul.hpp>
#include <nlohmann/json.hpp>
#include <support/parity.hpp>
#include <tensor_names.hpp>

#include <cmath>
#include <functional>

#include "worker.hpp"

namespace {

using namespace trainer;

/// Normal numbers, the same million over and over: making 1e9 of them takes longer than what is measured.
at::Tensor random_weight(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  static const at::Tensor block = at::randn({1 << 20});
  at::Tensor made = at::empty(shape, dtype);
  if (shape.size() < 2) return made.fill_(1);
  const double scale = 0.5 / std::sqrt(static_cast<double>(made.numel() / shape.front()));
  for (int64_t begin = 0; begin < made.numel(); begin += block.numel()) {
    const int64_t count = std::min(block.numel(), made.numel() - begin);
    made.view(-1).narrow(0, begin, count).copy_(block.narrow(0, 0, count).mul(scale));
  }
  return made;
}

/// Every caption is as long as captions may be.
class FullCaption final : public Tokenizer {
 public:
  FullCaption(int64_t tokens, int64_t vocabulary) {
    for (int64_t i = 0; i < tokens; ++i) ids_.push_back(i * 7 % vocabulary);
  }
  [[nodiscard]] std::vector<int64_t> encode(std::string_view) const override { return ids_; }
  [[nodiscard]] std::optional<int64_t> id(std::string_view) const override { return 0; }

 private:
  std::vector<int64_t> ids_;
};

struct Work {
  NamedTensors weights;
  std::function<void()> run;
};

Work text_encoder(const nlohmann::json& settings, at::ScalarType dtype) {
  const auto family = settings.at("part") == "qwen3" ? mistral::Family::qwen3 : mistral::Family::mistral;
  const std::string text = settings.at("config").dump();
  const mistral::LmConfig config = mistral::read_config(text, family);
  const int64_t layers = settings.at("layers"), tokens = settings.at("tokens");
  NamedTensors weights{{"model.embed_tokens.weight", random_weight({config.vocab, config.hidden}, dtype)}};
  Array taps;
  for (int64_t i = 0; i < layers; ++i) {
    taps.push_back({i + 1});
    for (const mistral::LayerTensor& tensor : mistral::layer_tensors(config))
      weights["model.layers." + std::to_string(i) + "." + tensor.name] = random_weight(tensor.shape, dtype);
  }
  const Options options("text_encoder", Table{{"max_tokens", {tokens}},
                                              {"layers", {taps}},
                                              {"micro_batch", {int64_t{1}}},
                                              {"system_message", {std::string("newline")}}});
  const EncoderContext context{options, std::make_shared<test::MemorySource>(weights), text,
                               std::make_shared<FullCaption>(tokens, config.vocab), dtype};
  const auto encoder = std::make_shared<mistral::LmEncoder>(context, family);
  return {weights, [encoder] { encoder->encode(std::vector<std::string>{"a caption"}); }};
}

Work autoencoder(const nlohmann::json& settings, at::ScalarType dtype) {
  const flux2_vae::VaeConfig config;  // the published one
  flux2_vae::Requirements needed;
  flux2_vae::Encoder(needed, config);
  flux2_vae::Decoder(needed, config);
  const int64_t moments = 2 * config.latent_channels, latents = config.latent_channels;
  for (const auto& [name, width] : {std::pair("quant_conv", moments), {"post_quant_conv", latents}}) {
    needed.tensor(std::string(name) + ".weight", {width, width, 1, 1});
    needed.tensor(std::string(name) + ".bias", {width});
  }
  for (const char* name : {"bn.running_mean", "bn.running_var"}) needed.tensor(name, {config.packed_channels()});
  NamedTensors weights;
  for (const TensorInfo& tensor : needed.tensors()) weights[tensor.name] = random_weight(tensor.shape, at::kFloat);
  const Options options("autoencoder", Table{{"tiling", {std::string("auto")}}});
  const auto made = std::make_shared<flux2_vae::Flux2Autoencoder>(
      EncoderContext{options, std::make_shared<test::MemorySource>(weights), "", nullptr, dtype});
  const int64_t width = settings.at("width"), height = settings.at("height"), factor = made->spatial_factor();
  if (settings.at("part") == "encode") {
    const at::Tensor picture = at::randn({1, 3, 1, height, width}).clamp_(-1, 1);
    return {weights, [made, picture] { made->encode(picture); }};
  }
  const at::Tensor cells = at::randn({1, made->latent_channels(), 1, height / factor, width / factor});
  return {weights, [made, cells] { made->decode(cells); }};
}

void run(const nlohmann::json& settings) {
  if (const int threads = settings.at("threads"); threads > 0) at::set_num_threads(threads);
  matmul::use(settings.at("matmul") == "mkl" ? matmul::Library::mkl : matmul::suited());
  const c10::AutoGradMode no_grad(false);
  const at::ScalarType dtype = settings.at("dtype") == "bf16" ? at::kBFloat16 : at::kFloat;
  const std::string part = settings.at("part");
  const Work work = (part == "encode" || part == "decode" ? autoencoder : text_encoder)(settings, dtype);
  int64_t parameters = 0;
  for (const auto& [name, tensor] : work.weights) parameters += tensor.numel();
  std::printf("ready %lld\n", static_cast<long long>(parameters));
  bench::serve([&](const std::string&) {
    const bench::Seconds seconds = bench::timed(work.run);
    std::printf("%.6f %.6f\n", seconds.wall, seconds.cpu);
  });
}

}  // namespace

int main(int argc, char** argv) { return bench::worker_main(argc, argv, run); }
