/// @file Registration of the adapter "lora".
#include <trainer/sdk/plugin.hpp>

#include "lora.hpp"

namespace {

void init(trainer::Registrar& registrar) { registrar.add(trainer::AdapterComponent{"lora", trainer::lora::make_lora}); }

}  // namespace

TRAINER_PLUGIN("lora", "0.1.0", init)
