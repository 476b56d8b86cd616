/// @file Registration of the toy language model, its objective and its text encoder.
#include <trainer/sdk/plugin.hpp>

#include "parts.hpp"

namespace {

void init(trainer::Registrar& registrar) {
  registrar.add(trainer::ModelComponent{"toy_lm", toy_lm::make_model, nullptr, toy_lm::miniature});
  registrar.add(trainer::ObjectiveComponent{"next_token", toy_lm::make_next_token});
  registrar.add(trainer::TextEncoderComponent{"bytes", toy_lm::make_bytes});
}

}  // namespace

TRAINER_PLUGIN("toy_lm", "0.1.0", init)
