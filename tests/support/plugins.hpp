/// @file The plugins of the build as tests open them, and components made from them as a recipe makes them.
#pragma once

#include <plugin/loader.hpp>

#include <memory>
#include <string>
#include <vector>

namespace trainer::testing {

/// The folders of TRAINER_TEST_PLUGINS, separated by colons.
std::vector<plugin::SearchFolder> plugin_folders();

/// Over these folders; one per process.
plugin::Loader& built_plugins();

/// Every option of a component of the build with its default, changed by `changes`.
Options options_of(const std::string& kind, const std::string& name, const Table& changes = {});

/// A memory strategy with these options.
std::unique_ptr<MemoryStrategy> make_strategy(const std::string& name, const Table& changes = {});

}  // namespace trainer::testing
