/// @file Which model family and which kind of adapter a file belongs to, found by asking every plugin.
#pragma once

#include <adapter/adapter_file.hpp>
#include <plugin/loader.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trainer::assembly {

struct KnownAdapter {
  std::string model;  ///< the model component, "flux2"
  LoraFamily family;
  adapter::ReadAdapter adapter;
};

/// The kinds of adapters whose manifests were found, the program's own first.
std::vector<adapter::AdapterKind> adapter_kinds(const plugin::Found& found);

/// Reads the file as the kind that it is, for a model of this family. Throws Error: as read_adapter, and bad_input for
/// a file that names a kind which no plugin offers.
adapter::ReadAdapter read_known(const plugin::Found& found, const weights::TensorFile& file, const LoraFamily& family);

/// Reads the file for the adapter `kind`. Throws as read_known, and Error (bad_recipe) for a file of another kind.
adapter::ReadAdapter read_for(const plugin::Found& found, const weights::TensorFile& file, const LoraFamily& family,
                              const std::string& kind);

/// An adapter of the kind that the file was read as, with default options, for Adapter::start_from. Throws Error
/// (bad_input) when no adapter reads the file.
std::unique_ptr<Adapter> adapter_for(plugin::Loader& loader, const adapter::ReadAdapter& read);

/// The family of a model component. Throws Error (plugin_rejected) when there is none of that name.
LoraFamily family_of(plugin::Loader& loader, const std::string& model);

/// The family of the first model plugin that knows the names of all tensors of `file`, whatever is in them.
std::optional<LoraFamily> family_of_names(plugin::Loader& loader, const weights::TensorFile& file);

/// Reads an adapter with the family of `model`, or, when that is empty, of the first model plugin that knows all its
/// tensors. Throws Error: bad_input with what its family objects to, or, when none knows all names, what each does;
/// plugin_rejected for a `model` that there is not.
KnownAdapter open_adapter(plugin::Loader& loader, const weights::TensorFile& file, const std::string& model = {});

}  // namespace trainer::assembly
