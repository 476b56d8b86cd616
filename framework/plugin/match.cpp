#include <plugin/library.hpp>
#include <plugin/match.hpp>
#include <plugin/permissions.hpp>

#include <map>
#include <sstream>
#include <stdexcept>

namespace trainer::plugin {
namespace {

std::map<std::string, std::string> fields(const std::string& fingerprint) {
  std::map<std::string, std::string> map;
  std::istringstream stream(fingerprint);
  for (std::string field; std::getline(stream, field, ';');) {
    const auto equals = field.find('=');
    map[field.substr(0, equals)] = equals == std::string::npos ? "" : field.substr(equals + 1);
  }
  return map;
}

}  // namespace

std::string fingerprint_difference(const std::string& theirs, const std::string& ours) {
  if (theirs == ours) return {};
  const auto plugin = fields(theirs), program = fields(ours);
  std::string text;
  for (const auto& [key, value] : program) {
    const auto it = plugin.find(key);
    const std::string other = it == plugin.end() ? "(not stated)" : it->second;
    if (other != value) text += "\n  " + key + ": plugin " + other + ", program " + value;
  }
  return text.empty() ? "\n  plugin  " + theirs + "\n  program " + ours : text;
}

std::string mismatch(const Manifest& manifest, const Program& program) {
  const auto other = [&](const char* what, const std::string& theirs, const std::string& ours) {
    return theirs == ours ? std::string()
                          : std::string("built for ") + what + " " + theirs + ", this program has " + ours + " (" +
                                manifest.file.string() + "); rebuild the plugin";
  };
  if (std::string text = other("SDK API", manifest.api, program.api); !text.empty()) return text;
  if (std::string text = other("LibTorch", manifest.torch, program.torch); !text.empty()) return text;
  const std::string fields = fingerprint_difference(manifest.fingerprint, program.fingerprint);
  return fields.empty() ? "" : "built for another program:" + fields + "\n  rebuild the plugin with this program's SDK";
}

std::string unusable(const Manifest& manifest, const Program& program) {
  if (std::string text = mismatch(manifest, program); !text.empty()) return text;
  if (!std::filesystem::is_regular_file(manifest.library))
    return "its library is not there: " + manifest.library.string();
  try {
    require_whole(manifest.library);
    require_safe_permissions(manifest.schema.name, manifest.library);
  } catch (const std::runtime_error& error) {  // OpenError and Error
    return error.what();
  }
  return {};
}

}  // namespace trainer::plugin
