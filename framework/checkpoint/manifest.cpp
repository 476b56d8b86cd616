#include <base/entries.hpp>
#include <base/hash.hpp>
#include <base/json_depth.hpp>
#include <checkpoint/manifest.hpp>
#include <nlohmann/json.hpp>
#include <trainer/sdk/error.hpp>

#include <cstdint>
#include <optional>
#include <set>
#include <type_traits>

namespace trainer::checkpoint {
namespace {

constexpr int kVersion = 1;
constexpr std::string_view kHashLine = "xxh128 ";
constexpr std::size_t kHashDigits = 32;

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw Error(ExitCode::bad_input, name + ": damaged checkpoint manifest: " + why, "CKPT_MANIFEST");
}

/// A whole number of type T: of a fraction or one out of range nlohmann would make anything.
template <typename T>
T whole(const nlohmann::json& json, const char* key, const std::string& name) {
  const nlohmann::json& value = json.at(key);
  const bool fits = std::is_signed_v<T> ? value.is_number_integer() : value.is_number_unsigned();
  if (!fits || (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}))
    refuse(name, std::string("\"") + key + "\" is " + value.dump() + ", no whole number");
  return value.get<T>();
}

Manifest from_json(const nlohmann::json& json, const std::string& name) {
  if (whole<int64_t>(json, "version", name) != kVersion)
    refuse(name, "written in format version " + json.at("version").dump() + ", this program reads 1");
  Manifest manifest;
  manifest.step = whole<int64_t>(json, "step", name);
  manifest.run_id = json.at("run_id").get<std::string>();
  std::set<std::string> names;
  for (const auto& file : json.at("files")) {
    FileRecord record{file.at("name").get<std::string>(), whole<uint64_t>(file, "bytes", name),
                      file.at("xxh128").get<std::string>()};
    const bool plain = !record.name.empty() && record.name.find('/') == std::string::npos && record.name.front() != '.';
    if (!plain || !names.insert(record.name).second) refuse(name, "bad file name \"" + record.name + "\"");
    manifest.files.push_back(std::move(record));
  }
  manifest.fingerprints = json.at("fingerprints").get<std::map<std::string, std::string>>();
  if (manifest.step < 0) refuse(name, "negative step");
  return manifest;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  nlohmann::ordered_json json{{"version", kVersion}, {"step", manifest.step}, {"run_id", manifest.run_id}};
  json["files"] = nlohmann::ordered_json::array();
  for (const FileRecord& file : manifest.files)
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh128", file.xxh128}});
  json["fingerprints"] = manifest.fingerprints;
  std::string text = json.dump(1) + "\n";
  text += std::string(kHashLine) + xxh128(text) + "\n";
  return text;
}

Manifest parse_manifest(std::string_view text, const std::string& name) {
  const std::size_t tail = kHashLine.size() + kHashDigits + 1;
  if (text.size() <= tail || !text.ends_with('\n')) refuse(name, "it is cut off");
  const std::string_view body = text.substr(0, text.size() - tail), line = text.substr(text.size() - tail);
  if (!line.starts_with(kHashLine)) refuse(name, "its last line is no hash");
  if (xxh128(body) != line.substr(kHashLine.size(), kHashDigits)) refuse(name, "its content does not match its hash");
  if (nests_deeply(body)) refuse(name, "it is nested deeper than this program writes");
  try {
    Manifest manifest = from_json(nlohmann::json::parse(body), name);
    if (manifest_text(manifest) != text) refuse(name, "it holds more than this program writes");
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    refuse(name, error.what());
  }
}

void verify_files(const std::filesystem::path& folder, const Manifest& manifest) {
  for (const FileRecord& record : manifest.files) {
    const std::filesystem::path file = folder / record.name;
    const std::optional<uint64_t> bytes = size_of(file);
    if (!bytes) throw Error(ExitCode::bad_input, file.string() + ": missing from the checkpoint", "CKPT_MISSING");
    if (*bytes != record.bytes)
      throw Error(ExitCode::bad_input,
                  file.string() + ": has " + std::to_string(*bytes) + " bytes, the manifest says " +
                      std::to_string(record.bytes),
                  "CKPT_SIZE");
    if (xxh128_file(file) != record.xxh128)
      throw Error(ExitCode::bad_input, file.string() + ": its content changed since it was saved (hash)", "CKPT_HASH");
  }
}

}  // namespace trainer::checkpoint
