#include <nlohmann/json.hpp>
#include <recipe/compose.hpp>
#include <recipe/load.hpp>
#include <recipe/locate.hpp>
#include <recipe/resolved.hpp>

namespace trainer::recipe {
namespace {

/// The paths that overrides did not change keep the form in which they were written.
void keep_written_paths(const Recipe& before, Recipe& now) {
  std::map<std::string, std::string> values;
  for (auto& [key, text] : flatten(before)) values[key] = std::move(text);
  for (const auto& [key, text] : flatten(now)) {
    const auto same = values.find(key);
    if (same == values.end() || same->second != text) continue;
    const auto written = before.paths_as_written.find(key);
    if (written == before.paths_as_written.end())
      now.paths_as_written.erase(key);
    else
      now.paths_as_written[key] = written->second;
  }
}

}  // namespace

Resolved resolved(const Recipe& recipe) {
  return {recipe.file, to_toml(recipe), recipe.paths_as_written, recipe.positions};
}

nlohmann::json to_json(const Resolved& recipe) {
  nlohmann::json positions = nlohmann::json::object();
  for (const auto& [key, at] : recipe.positions) positions[key] = {at.file, at.line, at.column};
  return {{"file", recipe.file},
          {"text", recipe.text},
          {"paths_as_written", recipe.paths_as_written},
          {"positions", std::move(positions)}};
}

Resolved parse_resolved(const nlohmann::json& json) {
  Resolved recipe;
  recipe.file = json.at("file").get<std::string>();
  recipe.text = json.at("text").get<std::string>();
  recipe.paths_as_written = json.at("paths_as_written").get<std::map<std::string, std::string>>();
  for (const auto& [key, at] : json.at("positions").items())
    recipe.positions[key] = {at.at(0).get<std::string>(), at.at(1).get<uint32_t>(), at.at(2).get<uint32_t>()};
  return recipe;
}

Recipe load_resolved(const Resolved& recipe, std::span<const ComponentSchema> components) {
  Node root = read_stored(recipe.text, recipe.file);
  root.position = {recipe.file, 1, 1};
  restore_positions(root, recipe.positions);
  Recipe made = read_tree(std::move(root), recipe.file, {}, components, {.paths_must_exist = false});
  made.paths_as_written = recipe.paths_as_written;
  made.positions = recipe.positions;
  return made;
}

Recipe changed(const Recipe& recipe, std::span<const std::string> overrides,
               std::span<const ComponentSchema> components) {
  Node root = read_stored(to_toml(recipe), recipe.file);
  root.position = {recipe.file, 1, 1};
  restore_positions(root, recipe.positions);
  Recipe made = read_tree(std::move(root), recipe.file, overrides, components, {.paths_must_exist = false});
  keep_written_paths(recipe, made);
  return made;
}

}  // namespace trainer::recipe
