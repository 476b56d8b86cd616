// Bytes as the config.json of somebody's model, for each of our components.
#include <base/json_depth.hpp>
#include <flux2/config.hpp>
#include <flux2_vae/config.hpp>
#include <mistral/lm_config.hpp>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>

#include "target.hpp"

namespace {

using namespace trainer;

bool is_positive(double number) { return std::isfinite(number) && number > 0; }

void transformer(const std::string& text) {
  const flux2::Config config = flux2::parse_config(text, "fuzz");
  for (const int64_t size : {config.in_channels, config.out_channels, config.heads, config.head_dim, config.joint_dim,
                             config.time_channels, config.mlp_hidden, config.hidden()})
    fuzz::require(size >= 1 && size <= flux2::kLargestSize, "sizes are within their limits");
  fuzz::require(config.num_layers >= 0 && config.num_single_layers >= 0, "blocks can be counted");
  fuzz::require(std::accumulate(config.axes.begin(), config.axes.end(), int64_t{0}) == config.head_dim,
                "the axes fill a head");
  fuzz::require(is_positive(config.theta) && is_positive(config.eps), "constants are numbers above 0");
}

void autoencoder(const std::string& text) {
  const flux2_vae::VaeConfig config = flux2_vae::parse_config(text, {}, "fuzz");
  flux2_vae::check_config(config, "fuzz");
  fuzz::require(config.levels() >= 1 && config.spatial_factor() >= 1 && config.packed_channels() >= 1,
                "sizes are above 0");
  for (const auto* widths : {&config.encoder_channels, &config.decoder_channels})
    for (const int64_t width : *widths)
      fuzz::require(width >= 1 && width % config.norm_groups == 0, "groups divide the widths");
  fuzz::require(is_positive(config.batch_norm_eps), "constants are numbers above 0");
}

void text_encoder(const std::string& text, mistral::Family family) {
  const mistral::LmConfig config = mistral::read_config(text, family);
  for (const int64_t size :
       {config.layers, config.hidden, config.intermediate, config.vocab, config.heads, config.kv_heads})
    fuzz::require(size >= 1 && size <= INT32_MAX, "sizes are within their limits");
  fuzz::require(config.heads % config.kv_heads == 0 && config.head_dim % 2 == 0, "heads fit each other");
  fuzz::require(is_positive(config.eps) && is_positive(config.rope_theta), "constants are numbers above 0");
}

void parse(std::string_view bytes) {
  if (nests_deeply(bytes)) return;  // refused before a component gets the text
  const std::string text(bytes);
  const auto taken_or_refused = [&](auto&& reader) { fuzz::run_one([&] { reader(text); }); };
  taken_or_refused(transformer);
  taken_or_refused(autoencoder);
  for (const auto family : {mistral::Family::mistral, mistral::Family::qwen3})
    taken_or_refused([&](const std::string& json) { text_encoder(json, family); });
}

}  // namespace
TRAINER_FUZZ_TARGET("model_config", parse);
