#include <base/json_depth.hpp>

#include <trainer/sdk/error.hpp>

namespace trainer {

bool nests_deeply(std::string_view json) {
  int level = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;  // whatever is escaped ends no string
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '\0') {
      return false;  // where the parser ends, too
    } else if (c == '[' || c == '{') {
      if (++level > kMostJsonLevels) return true;
    } else if (c == ']' || c == '}') {
      --level;
    }
  }
  return false;
}

void require_shallow(std::string_view json, const std::string& name) {
  if (nests_deeply(json))
    throw Error(ExitCode::bad_input,
                name + ": its JSON is nested deeper than " + std::to_string(kMostJsonLevels) + " levels", "JSON_DEPTH");
}

}  // namespace trainer
