/// @file Chooses the linear layers that an adapter trains, and hangs it on them.
#pragma once

#include <trainer/sdk/adapter.hpp>
#include <trainer/sdk/model.hpp>

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace trainer::adapter {

/// Whether a canonical layer name is meant by a pattern: `*` stands for any text and the whole name must match; a
/// pattern without `*` also matches as the last parts of a name ("attn.to_q", as peft does).
bool matches(std::string_view pattern, std::string_view name);

/// The layers meant by `patterns`, in the order of `layers`, without those that this run spares. Throws Error
/// (bad_recipe) for a pattern that matches nothing, with near names.
std::vector<Linear> select(std::span<const Linear> layers, std::span<const std::string> patterns);

/// The layers that an adapter trains: its own patterns, or those of `in_file` (the file that it starts from), or the
/// model's default ones. A lone "*" (targets = "all") means every linear layer of the blocks: embedders, shared
/// modulation and the final projection must be named. Throws Error (bad_recipe) naming the layers of `in_file` that are
/// not among them: what the file holds for them would be lost; and as `select` does.
std::vector<Linear> targeted(const Adapter& adapter, Model& model, std::span<const Linear> layers,
                             std::span<const std::string> in_file = {});

/// Attaches the adapter to `layers` and returns its trained parameters in order. Initial values are keyed by (seed,
/// layer name): they do not depend on which other layers are targeted. Random data is made on the CPU and moved to
/// `device`. `dtype` is the model's compute dtype.
std::vector<Parameter*> inject(const Adapter& adapter, std::span<const Linear> layers, uint64_t seed, at::Device device,
                               at::ScalarType dtype = at::kFloat);

/// The same, each layer's on the device that `device_of` gives for its name.
std::vector<Parameter*> inject(const Adapter& adapter, std::span<const Linear> layers, uint64_t seed,
                               const std::function<at::Device(const std::string& layer)>& device_of,
                               at::ScalarType dtype = at::kFloat);

}  // namespace trainer::adapter
