/// @file What the front asked for, as plain values; read once from the JSON of trainer_engine_call.
#pragma once

#include <plugin/manifest.hpp>
#include <trainer/sdk/error.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trainer::assembly {

struct Request {
  std::string recipe;                  ///< recipe file, for the commands that take one
  std::vector<std::string> overrides;  ///< texts of --set
  std::string resume = "auto";         ///< auto, never, required or a checkpoint folder
  std::string resume_with;             ///< whose word counts where they differ: "recipe", "checkpoint", "" for neither
  int64_t profile = 0;                 ///< of run: steps to profile
  std::string file;                    ///< of export, inspect and plugins check
  std::string strategy;                ///< of explain: a memory strategy
  std::string lora, output;            ///< of sample
  std::vector<std::string> prompts;    ///< of sample
  std::string format;                  ///< of export, which also has `file` and `output`
  std::string model;                   ///< of export: kind of the model; of plugins check: folder with weights
  bool force = false;                  ///< of export
  bool values = false;                 ///< of inspect: read all values, however large the file
  bool random_weights = false;         ///< of prove
  std::vector<double> tflops{};        ///< of plan: what the devices compute in a second, in 1e12
  int ranks = 1;                       ///< of plan: processes that share every step
  std::vector<std::string> devices{};  ///< of plugins check
  bool all = false;                    ///< of plugins check: print every row
  bool json = false, quiet = false;
  int64_t timeout = 600;         ///< of run and cache: distributed.timeout in seconds, as far as the recipe told it
  std::optional<Error> failure;  ///< of run and cache: what is wrong with this rank's recipe or files; for the others
  std::filesystem::path libtorch, images, nccl;
  std::vector<plugin::SearchFolder> plugins;
};

/// `text` is written by our own front; a malformed one is a defect and throws std::exception.
Request parse_request(const std::string& text);

}  // namespace trainer::assembly
