#include <nlohmann/json.hpp>
#include <assembly/request.hpp>

namespace trainer::assembly {

Request parse_request(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  Request request;
  request.recipe = json.value("recipe", "");
  request.overrides = json.value("set", std::vector<std::string>{});
  request.resume = json.value("resume", "auto");
  request.resume_with = json.value("resume_with", "");
  request.profile = json.value("profile", int64_t{0});
  request.file = json.value("file", "");
  request.strategy = json.value("strategy", "");
  request.lora = json.value("lora", "");
  request.output = json.value("output", "");
  request.format = json.value("format", "");
  request.model = json.value("model", "");
  request.force = json.value("force", false);
  request.values = json.value("values", false);
  request.prompts = json.value("prompts", std::vector<std::string>{});
  request.devices = json.value("devices", std::vector<std::string>{});
  request.random_weights = json.value("random_weights", false);
  request.tflops = json.value("tflops", std::vector<double>{});
  request.ranks = json.value("ranks", 1);
  request.all = json.value("all", false);
  request.json = json.value("json", false);
  request.quiet = json.value("quiet", false);
  request.timeout = json.value("timeout", request.timeout);
  if (const auto failure = json.find("failure"); failure != json.end())
    request.failure.emplace(static_cast<ExitCode>(failure->at("code").get<int>()),
                            failure->at("message").get<std::string>());
  request.libtorch = json.at("libtorch").get<std::string>();
  request.images = json.at("images").get<std::string>();
  request.nccl = json.value("nccl", "");
  for (const auto& place : json.at("plugins"))
    request.plugins.push_back({place.at("folder").get<std::string>(), place.at("origin").get<std::string>()});
  return request;
}

}  // namespace trainer::assembly
