/// @file The weights of a FLUX.2 transformer of any size that exists in no file, made where they are used: no disk and
/// no host memory is needed for 32 billion of them.
#pragma once

#include <trainer/sdk/weights.hpp>

#include <memory>
#include <nlohmann/json_fwd.hpp>

namespace trainer::bench {

/// `shape`: double, single (numbers of blocks), heads, head_dim (a multiple of 8), channels, joint_dim, guidance.
/// Matrices are normal with a deviation that keeps activations at their size, vectors are 1; `read` makes a tensor of
/// `dtype` on `device`, the same for its name every time on one kind of device.
std::shared_ptr<WeightSource> random_flux2(const nlohmann::json& shape, at::ScalarType dtype, at::Device device);

}  // namespace trainer::bench
