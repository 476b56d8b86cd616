#include <base/files.hpp>
#include <base/json_depth.hpp>
#include <nlohmann/json.hpp>
#include <prove/proof.hpp>

#include <algorithm>

namespace trainer::prove {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr auto kFile = "proof.json";
constexpr std::size_t kFileLimit = 1 << 24;

Json to_json(const Row& line) {
  Json json{{"run", line.subset},
            {"against", line.against},
            {"passed", line.passed()},
            {"compared", line.verdict != Row::not_compared},
            {"result", line.result},
            {"peak_bytes", line.peak_bytes},
            {"heavy_operations", line.heavy}};
  if (line.largest) json["largest_difference"] = {{"of_maximum", line.largest->apart}, {"where", line.largest->text()}};
  if (line.apart)
    json["from_dense_weights"] = {{"loss", line.apart->loss},
                                  {"gradients", line.apart->gradients},
                                  {"gradients_after_steps", line.apart->later},
                                  {"tolerance", line.tolerance.dense}};
  return json;
}

}  // namespace

bool Proof::passed() const {
  return std::all_of(lines.begin(), lines.end(),
                     [](const Row& line) { return line.passed() || line.verdict == Row::not_compared; });
}

bool Proof::complete() const {
  return std::all_of(lines.begin(), lines.end(), [](const Row& line) { return line.verdict != Row::not_compared; });
}

std::string Proof::verdict() const {
  if (!passed()) return "differs";
  const bool packed = std::any_of(lines.begin(), lines.end(), [](const Row& line) { return line.apart.has_value(); });
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
  for (const Row& line : proof.lines) json["comparisons"].push_back(to_json(line));
  return json;
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
