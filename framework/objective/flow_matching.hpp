/// @file Flow matching (Lipman et al. 2023; rectified flow, Liu et al. 2023), the built-in objective "flow_matching":
/// x_t = (1 - sigma) x0 + sigma eps, target eps - x0, loss = mean of w(sigma) (prediction - target)^2 in fp32.
#pragma once

#include <trainer/sdk/registrar.hpp>

namespace trainer::objective {

/// Adds "flow_matching" to the registry.
void register_flow_matching(Registrar& registrar);

}  // namespace trainer::objective
