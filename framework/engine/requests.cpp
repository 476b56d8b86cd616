#include <engine/requests.hpp>
#include <nlohmann/json.hpp>

namespace trainer::engine {
namespace {

using nlohmann::json;

template <typename Part>
void read_value(const json& from, const char* key, Part& value) {
  if (const auto found = from.find(key); found != from.end()) value = found->get<Part>();
}

void read_error(const json& from, const char* key, std::optional<Error>& error) {
  if (const auto found = from.find(key); found != from.end())
    error.emplace(static_cast<ExitCode>(found->at("code").get<int>()), found->at("message").get<std::string>());
}

}  // namespace

void read(const json& from, Request& request) {
  request.libraries = {from.at("libtorch").get<std::string>(), from.value("nccl", "")};
  request.images = from.at("images").get<std::string>();
  for (const json& place : from.at("plugins"))
    request.plugins.push_back({place.at("folder").get<std::string>(), place.at("origin").get<std::string>()});
  read_value(from, "json", request.json);
  read_value(from, "quiet", request.quiet);
}

void read(const json& from, RecipeRequest& request) {
  read(from, static_cast<Request&>(request));
  if (const auto recipe = from.find("recipe"); recipe != from.end()) request.recipe = recipe::parse_resolved(*recipe);
}

void read(const json& from, CheckRequest& request) {
  read(from, static_cast<RecipeRequest&>(request));
  read_value(from, "resume_with", request.resume_with);
  read_error(from, "problem", request.problem);
}

void read(const json& from, ProveRequest& request) {
  read(from, static_cast<RecipeRequest&>(request));
  read_value(from, "random_weights", request.random_weights);
}

void read(const json& from, PlanRequest& request) {
  read(from, static_cast<RecipeRequest&>(request));
  read_value(from, "tflops", request.tflops);
  read_value(from, "ranks", request.ranks);
}

void read(const json& from, ExplainRequest& request) {
  read(from, static_cast<RecipeRequest&>(request));
  read_value(from, "strategy", request.strategy);
}

void read(const json& from, SampleRequest& request) {
  read(from, static_cast<RecipeRequest&>(request));
  read_value(from, "lora", request.lora);
  read_value(from, "output", request.output);
  read_value(from, "prompts", request.prompts);
}

void read(const json& from, RankedRequest& request) {
  read(from, static_cast<RecipeRequest&>(request));
  read_value(from, "timeout", request.timeout);
  read_error(from, "failure", request.failure);
}

void read(const json& from, RunRequest& request) {
  read(from, static_cast<RankedRequest&>(request));
  read_value(from, "resume", request.resume);
  read_value(from, "resume_with", request.resume_with);
  read_value(from, "profile", request.profile);
}

void read(const json& from, ExportRequest& request) {
  read(from, static_cast<Request&>(request));
  read_value(from, "file", request.file);
  read_value(from, "format", request.format);
  read_value(from, "output", request.output);
  read_value(from, "model", request.model);
  read_value(from, "force", request.force);
}

void read(const json& from, InspectRequest& request) {
  read(from, static_cast<Request&>(request));
  read_value(from, "file", request.file);
  read_value(from, "values", request.values);
}

void read(const json& from, PluginsCheckRequest& request) {
  read(from, static_cast<Request&>(request));
  read_value(from, "file", request.file);
  read_value(from, "model", request.model);
  read_value(from, "devices", request.devices);
  read_value(from, "all", request.all);
}

}  // namespace trainer::engine
