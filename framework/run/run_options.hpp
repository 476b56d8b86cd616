/// @file What `trainer run` is told beside the recipe.
#pragma once

#include <assembly/device.hpp>

#include <cstdint>
#include <string>

namespace trainer::run {

struct RunOptions {
  std::string resume = "auto";  ///< auto, never, required or a checkpoint folder
  std::string resume_with;      ///< which side wins where recipe and checkpoint differ: "recipe", "checkpoint" or ""
  int64_t profile = 0;          ///< steps to profile
  bool json = false, quiet = false;
  assembly::Libraries libraries;
};

}  // namespace trainer::run
