/// @file What the front asks for, one struct for each command, read once from the JSON of trainer_engine_call.
#pragma once

#include <host/host.hpp>
#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <vector>

namespace trainer::engine {

using host::RankedRequest;
using host::RecipeRequest;
using host::Request;  // all that `doctor` gets
using host::RunRequest;

struct CheckRequest : RecipeRequest {
  std::string resume_with;       ///< which side wins where recipe and checkpoint differ: "recipe", "checkpoint" or ""
  std::optional<Error> problem;  ///< why no run can start with the recipe as it is: files that are missing
};

struct ProveRequest : RecipeRequest {
  bool random_weights = false;
};

struct PlanRequest : RecipeRequest {
  std::vector<double> tflops{};  ///< what the devices compute in a second, in 1e12
  int ranks = 1;                 ///< processes that share every step
};

struct ExplainRequest : RecipeRequest {
  std::string strategy;  ///< a memory strategy
};

struct SampleRequest : RecipeRequest {
  std::string lora, output;  ///< may be empty
  std::vector<std::string> prompts;
};

struct ExportRequest : Request {
  std::string file, format;
  std::string output, model;  ///< may be empty; `model`: kind of the model
  bool force = false;         ///< replace the output
};

struct InspectRequest : Request {
  std::string file;
  bool values = false;  ///< read all values, however large the file
};

struct PluginsCheckRequest : Request {
  std::string file;
  std::string model;  ///< folder with weights; may be empty
  std::vector<std::string> devices{};
  bool all = false;  ///< print every row
};

/// `json` is written by our own front; a malformed one is a defect and throws std::exception.
void read(const nlohmann::json& json, Request& request);
void read(const nlohmann::json& json, RecipeRequest& request);
void read(const nlohmann::json& json, CheckRequest& request);
void read(const nlohmann::json& json, ProveRequest& request);
void read(const nlohmann::json& json, PlanRequest& request);
void read(const nlohmann::json& json, ExplainRequest& request);
void read(const nlohmann::json& json, SampleRequest& request);
void read(const nlohmann::json& json, RankedRequest& request);
void read(const nlohmann::json& json, RunRequest& request);
void read(const nlohmann::json& json, ExportRequest& request);
void read(const nlohmann::json& json, InspectRequest& request);
void read(const nlohmann::json& json, PluginsCheckRequest& request);

}  // namespace trainer::engine
