/// @file Registration of the objective "flow_matching".
#include <trainer/sdk/plugin.hpp>

#include "flow_matching.hpp"

namespace {

void init(trainer::Registrar& registrar) {
  registrar.add(trainer::ObjectiveComponent{"flow_matching", trainer::flow_matching::make_flow_matching});
}

}  // namespace

TRAINER_PLUGIN("flow_matching", "0.1.0", init)
