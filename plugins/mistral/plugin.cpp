/// @file Registers the two text encoders.
#include <trainer/sdk/plugin.hpp>

#include "encoder.hpp"

namespace {

using trainer::mistral::Family;

template <Family family>
std::unique_ptr<trainer::TextEncoder> make(const trainer::EncoderContext& context) {
  return std::make_unique<trainer::mistral::LmEncoder>(context, family);
}

void init(trainer::Registrar& registrar) {
  registrar.add(trainer::TextEncoderComponent{"mistral", &make<Family::mistral>});
  registrar.add(trainer::TextEncoderComponent{"qwen3", &make<Family::qwen3>});
}

}  // namespace

TRAINER_PLUGIN("mistral", "0.1.0", init)
