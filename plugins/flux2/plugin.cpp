/// @file Registration of the FLUX.2 transformer.
#include <trainer/sdk/plugin.hpp>

#include "layout.hpp"
#include "lora_family.hpp"
#include "model.hpp"
#include "names.hpp"

namespace {

std::unique_ptr<trainer::Model> create(const trainer::ModelContext& context) {
  return std::make_unique<trainer::flux2::Flux2Model>(context);
}

void init(trainer::Registrar& registrar) {
  registrar.add({"flux2", create, trainer::flux2::map_weights, trainer::flux2::miniature, trainer::flux2::lora_family});
}

}  // namespace

TRAINER_PLUGIN("flux2", "0.1.0", init)
