#include "autoencoder.hpp"

#include <trainer/sdk/plugin.hpp>

namespace {

std::unique_ptr<trainer::Autoencoder> create(const trainer::EncoderContext& context) {
  return std::make_unique<trainer::flux2_vae::Flux2Autoencoder>(context);
}

void init(trainer::Registrar& registrar) { registrar.add(trainer::AutoencoderComponent{"flux2_vae", create}); }

}  // namespace

TRAINER_PLUGIN("flux2_vae", "0.1.0", init)
