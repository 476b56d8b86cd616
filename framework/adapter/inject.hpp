/// @file Chooses the linear layers that an adapter trains, and hangs it on them.
#pragma once

#include <trainer/sdk/objective.hpp>

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

/// An adapter whose values come from a file: what it holds for a layer that is no target would be left out of training
/// and export.
class FromFile {
 public:
  virtual ~FromFile() = default;
  [[nodiscard]] virtual std::vector<std::string> layers_of_file() const = 0;  ///< empty: there is no file
};

/// The layers that an adapter trains: its own patterns, or the model's default ones. A lone "*" (targets = "all") means
/// every linear layer of the blocks: embedders, shared modulation and the final projection must be named. Throws Error
/// (bad_recipe) naming the layers of a FromFile's file that are not among them, and as `select` does.
std::vector<Linear> targeted(const Adapter& adapter, Model& model, std::span<const Linear> layers);

/// Attaches the adapter to `layers` and returns its trained parameters in order. Initial values are keyed by (seed,
/// layer name): they do not depend on which other layers are targeted. Data is made on the CPU and moved to `device`.
std::vector<Parameter*> inject(const Adapter& adapter, std::span<const Linear> layers, uint64_t seed,
                               at::Device device);

/// The same, each layer's on the device that `device_of` gives for its name.
std::vector<Parameter*> inject(const Adapter& adapter, std::span<const Linear> layers, uint64_t seed,
                               const std::function<at::Device(const std::string& layer)>& device_of);

}  // namespace trainer::adapter
