/// @file What the front asked for, as plain values; read once from the JSON of trainer_engine_call.
#pragma once

#include <plugin/manifest.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace trainer::train {

struct Request {
  std::string recipe;                  ///< recipe file, for the commands that take one
  std::vector<std::string> overrides;  ///< texts of --set
  std::string resume = "auto";         ///< auto, never, required or a checkpoint folder
  std::string file;                    ///< of inspect and plugins check
  std::string lora, output;            ///< of sample
  std::vector<std::string> prompts;    ///< of sample
  std::string model;                   ///< of plugins check: folder with weights
  bool random_weights = false;         ///< of prove
  bool json = false, quiet = false;
  std::filesystem::path libtorch, images;
  std::vector<plugin::SearchFolder> plugins;
};

/// `text` is written by our own front; a malformed one is a defect and throws std::exception.
Request parse_request(const std::string& text);

}  // namespace trainer::train
