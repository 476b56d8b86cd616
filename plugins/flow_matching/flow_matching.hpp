/// @file Flow matching (Lipman et al. 2023; rectified flow, Liu et al. 2023), the objective "flow_matching":
/// x_t = (1 - sigma) x0 + sigma eps, target eps - x0, loss = mean of w(sigma) (prediction - target)^2 in fp32.
#pragma once

#include <trainer/sdk/objective.hpp>
#include <trainer/sdk/options.hpp>

#include <memory>

namespace trainer::flow_matching {

/// The objective with the options of flow_matching.plugin.toml.
std::unique_ptr<Objective> make_flow_matching(const Options& options);

}  // namespace trainer::flow_matching
