#include <torch/version.h>
#include <base/files.hpp>
#include <base/hash.hpp>
#include <base/json_depth.hpp>
#include <nlohmann/json.hpp>
#include <recipe/load.hpp>
#include <prove/proof.hpp>
#include <trainer/sdk/fingerprint.hpp>

#include <algorithm>
#include <array>

namespace trainer::prove {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr auto kFile = "proof.json";
constexpr std::size_t kFileLimit = 1 << 24;

/// Whether a key of the recipe decides what a proof runs: where things lie and what is done besides training does not.
bool matters(const std::string& key) {
  static constexpr std::array kEnds{".tokenizer", ".device", ".folder", ".metadata"};
  if (std::any_of(kEnds.begin(), kEnds.end(), [&](const char* end) { return key.ends_with(end); })) return false;
  if (key == "text_encoder.path" || key.starts_with("autoencoder")) return false;
  static constexpr std::array kStarts{"run.seed",
                                      "model",
                                      "text_encoder",
                                      "data",
                                      "adapter",
                                      "objective",
                                      "memory",
                                      "placement",
                                      "train.batch_size",
                                      "train.micro_batch_size",
                                      "optimizer.fused_backward"};
  return std::any_of(kStarts.begin(), kStarts.end(), [&](const char* start) { return key.starts_with(start); });
}

Json to_json(const Comparison& line) {
  Json json{{"run", line.run},
            {"against", line.against},
            {"passed", line.passed},
            {"compared", line.judged},
            {"result", line.result},
            {"peak_bytes", line.peak_bytes},
            {"heavy_operations", line.heavy}};
  if (line.largest) json["largest_difference"] = {{"of_maximum", line.largest->apart}, {"where", line.largest->text()}};
  if (line.apart)
    json["from_dense_weights"] = {{"loss", line.apart->loss},
                                  {"gradients", line.apart->gradients},
                                  {"gradients_after_steps", line.apart->later},
                                  {"tolerance", line.tolerance}};
  return json;
}

}  // namespace

bool Proof::passed() const {
  return std::all_of(lines.begin(), lines.end(), [](const Comparison& line) { return line.passed || !line.judged; });
}

bool Proof::complete() const {
  return std::all_of(lines.begin(), lines.end(), [](const Comparison& line) { return line.judged; });
}

std::string Proof::verdict() const {
  if (!passed()) return "differs";
  const bool packed = std::any_of(lines.begin(), lines.end(), [](const Comparison& line) { return line.apart; });
  std::string text = packed ? "bit-equal but for packed weights, which are within their tolerance" : "bit-equal";
  if (!complete()) text += "; not everything could be compared";
  return text;
}

Json to_json(const Proof& proof) {
  Json json{{"proven", proof.passed()}, {"verdict", proof.verdict()},
            {"model", proof.model},     {"blocks", proof.blocks},
            {"inputs", proof.inputs},   {"trained", proof.trained},
            {"steps", proof.steps},     {"weight_bytes", proof.weight_bytes},
            {"notes", proof.notes}};
  json["comparisons"] = Json::array();
  for (const Comparison& line : proof.lines) json["comparisons"].push_back(to_json(line));
  return json;
}

std::map<std::string, std::string> proof_subject(const recipe::Recipe& recipe, const identity::Strangers& strangers,
                                                 const std::optional<planner::BudgetPlan>& plan) {
  FieldHash keys, ways;
  for (const auto& [key, value] : recipe::flatten(recipe))
    if (matters(key)) keys.add(key).add(value);
  std::string plugins, devices;
  for (const std::string& one : identity::describe(strangers)) plugins += (plugins.empty() ? "" : ", ") + one;
  for (const std::string& device : recipe.placement.devices) devices += (devices.empty() ? "" : ", ") + device;
  if (plan) {
    ways.add(plan->format);
    for (const planner::PlannedBlock& block : plan->blocks) ways.add(block.name).add(block.way);
  }
  return {{"recipe", keys.hex()},
          {"trainer", TRAINER_VERSION},
          {"torch", TORCH_VERSION},
          {"fingerprint", TRAINER_SDK_FINGERPRINT},
          {"plugins", plugins},
          {"device", devices},
          {"plan", plan ? ways.hex() : ""}};
}

fs::path store_proof(const fs::path& folder, const Proof& proof, const std::map<std::string, std::string>& subject) {
  make_folders(folder);
  Json json{{"proof", 1}, {"subject", subject}};
  json.update(to_json(proof));
  const fs::path file = folder / kFile;
  write_file_atomically(file, json.dump(1) + "\n");
  return file;
}

Json describe_stored_proof(const fs::path& folder, const std::map<std::string, std::string>& subject) {
  const Json none{{"found", "none"}};
  const fs::path file = folder / kFile;
  if (!fs::exists(file)) return none;
  const std::string text = read_file(file, kFileLimit, "proof");
  if (nests_deeply(text)) return none;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    const auto other = json.at("subject").get<std::map<std::string, std::string>>();
    Json differs = Json::array();
    for (const auto& [part, text] : subject) {
      const auto it = other.find(part);
      if (it == other.end() || it->second != text) differs.push_back(part);
    }
    Json found{{"found", differs.empty() ? "matching" : "other"},
               {"proven", json.at("proven").get<bool>()},
               {"verdict", json.at("verdict").get<std::string>()}};
    if (!differs.empty()) found["differs_in"] = differs;
    return found;
  } catch (const nlohmann::json::exception&) {
    return none;
  }
}

}  // namespace trainer::prove
