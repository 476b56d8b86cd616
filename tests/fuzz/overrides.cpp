// Each line as the argument of a --set, onto a recipe without mistakes.
#include <recipe/load.hpp>

#include <cctype>
#include <string>
#include <vector>

#include "target.hpp"
#include "temp_file.hpp"

namespace {

using namespace trainer;

constexpr const char* kBase = R"([model]
kind = "flux2"
path = "m"
[text_encoder]
path = "t"
tokenizer = "t.json"
[autoencoder]
path = "v"
[[data]]
folder = "d"
[adapter]
rank = 4
)";

const recipe::LoadOptions kOptions{.paths_must_exist = false};
constexpr std::size_t kMostLines = 8;

std::vector<std::string> lines_of(std::string_view bytes) {
  std::vector<std::string> lines;
  while (!bytes.empty() && lines.size() < kMostLines) {
    const std::size_t end = std::min(bytes.find('\n'), bytes.size());
    lines.emplace_back(bytes.substr(0, end));
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
  return lines;
}

/// Whether the text means the same as a line of a recipe: a dotted key of plain letters, and a value that is not taken
/// as a string for want of quotes, nor a table, which replaces here and is merged there.
bool is_a_line(const std::string& text) {
  const std::size_t equals = text.find('=');
  for (std::size_t i = 0; i < equals; ++i) {
    const bool letter = std::islower(static_cast<unsigned char>(text[i])) != 0 || text[i] == '_' || text[i] == '.';
    if (!letter) return false;
  }
  const std::size_t first = text.find_first_not_of(" \t", equals + 1);
  return first != std::string::npos && text[first] != '{' && !text.starts_with("extends");
}

/// The recipe with the line written below `extends`; empty when that line is no TOML, or a date.
std::optional<recipe::Recipe> edited(const fuzz::TempFolder& folder, const std::string& line) {
  try {
    return recipe::load(folder.write("edited.toml", "extends = \"base.toml\"\n" + line + "\n").string(), {}, {},
                        kOptions);
  } catch (const Error& error) {
    const std::string text = error.what();
    const bool other = text.find("not valid TOML") != std::string::npos || text.find("a date") != std::string::npos;
    fuzz::require(other, "what is taken from the command line is taken from a recipe");
    return {};
  }
}

void parse(std::string_view bytes) {
  static const fuzz::TempFolder folder;
  const std::string base = folder.write("base.toml", kBase).string();
  const std::vector<std::string> lines = lines_of(bytes);
  const recipe::Recipe first = recipe::load(base, lines, {}, kOptions);
  const std::string text = recipe::to_toml(first);
  const recipe::Recipe second = recipe::load(folder.write("resolved.toml", text).string(), {}, {}, kOptions);
  fuzz::require(recipe::differences(first, second).empty(), "a resolved recipe means the same");
  if (lines.size() != 1 || !is_a_line(lines.front())) return;
  if (const auto other = edited(folder, lines.front())) {
    for (const auto& [key, here, there] : recipe::differences(first, *other))
      // A relative path is relative to the working folder on the command line, to the recipe's folder in it.
      fuzz::require(here.find('/') != std::string::npos || there.find('/') != std::string::npos,
                    "--set does what the same line in the recipe does");
  }
}

}  // namespace
TRAINER_FUZZ_TARGET("overrides", parse);
