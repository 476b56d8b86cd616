/// @file Where the parts of the program are: in a build tree (trainer.layout.toml beside the program) or installed.
#pragma once

#include <plugin/manifest.hpp>

#include <filesystem>
#include <vector>

namespace trainer::cli {

struct Layout {
  std::filesystem::path engine, images;
  std::filesystem::path nccl;                 ///< may not be there
  std::vector<plugin::SearchFolder> plugins;  ///< --plugin-dir, then TRAINER_PLUGIN_PATH, then our own
};

/// `extra` are the folders of --plugin-dir. Never the current folder or the recipe's: a downloaded recipe must not
/// choose code.
Layout find_layout(const std::vector<std::string>& extra);

}  // namespace trainer::cli
