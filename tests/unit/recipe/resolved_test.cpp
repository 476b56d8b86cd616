#include <nlohmann/json.hpp>
#include <recipe/locate.hpp>
#include <recipe/resolved.hpp>

#include "fixture.hpp"

namespace trainer::recipe {
namespace {

class ResolvedRecipe : public RecipeTest {
 protected:
  void SetUp() override {
    RecipeTest::SetUp();
    write("base/base.toml", std::string(kMinimal) + "[sample]\nprompts = [\"a fox\"]\n");
    write("recipe.toml",
          "extends = \"base/base.toml\"\n"
          "[memory]\n"
          "strategies = [\"full_checkpointing\", \"fp8_weight_only\"]\n"
          "[memory.fp8_weight_only]\n"
          "table = \"scales.json\"\n"
          "[text_encoder]\n"
          "layers = [1, 2]\n");
  }
  /// Through the text in which it crosses the C call.
  static Recipe sent(const Recipe& recipe) {
    const nlohmann::json json = nlohmann::json::parse(to_json(resolved(recipe)).dump());
    return load_resolved(parse_resolved(json), test_components());
  }
  static std::string error_of(const Recipe& recipe, const std::vector<std::string>& overrides) {
    try {
      changed(recipe, overrides, test_components());
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(ResolvedRecipe, ComesBackWithoutItsFiles) {
  const Recipe before = load_file("recipe.toml", {"optimizer.lr=3e-4", "run.name=other"});
  std::filesystem::remove("recipe.toml");
  std::filesystem::remove_all("base");
  const Recipe after = sent(before);
  EXPECT_EQ(to_toml(after), to_toml(before));
  EXPECT_EQ(to_toml(after, PathStyle::as_written), to_toml(before, PathStyle::as_written));
  EXPECT_EQ(after.file, "recipe.toml");
  EXPECT_EQ(after.paths_as_written, before.paths_as_written);
}

TEST_F(ResolvedRecipe, KeepsThePlacesOfSectionsAndKeys) {
  const Recipe before = load_file("recipe.toml", {"optimizer.lr=3e-4"}), after = sent(before);
  const auto places = [](const Recipe& recipe) {
    std::vector<std::string> texts;
    for (const Component* one : {&recipe.model, &recipe.text_encoder, &recipe.autoencoder, &recipe.objective,
                                 static_cast<const Component*>(&recipe.placement)})
      texts.push_back(one->position.text());
    for (const Component& one : recipe.memory.components) texts.push_back(one.position.text());
    for (const Data& source : recipe.data) texts.push_back(source.position.text());
    return texts;
  };
  EXPECT_EQ(places(after), places(before));
  EXPECT_EQ(after.memory.components[0].position.text(), "recipe.toml:3:15") << "where the list names it";
  EXPECT_EQ(after.memory.components[1].position.text(), "recipe.toml:4:1");
  for (const auto& [key, place] : {std::pair{"memory.fp8_weight_only.table", "recipe.toml:5:9"},
                                   {"optimizer.lr", "--set optimizer.lr=3e-4"},
                                   {"sample.prompts", "base/base.toml:10:11"},
                                   {"memory.budget", "recipe.toml:2:1"}})
    EXPECT_EQ(with_position(std::string(key) + ": no", after.positions), std::string(place) + ": " + key + ": no");
  EXPECT_EQ(with_position("checkpoint.every: no", after.positions), "checkpoint.every: no") << "it has its default";
}

TEST_F(ResolvedRecipe, ChangesLikeWithSet) {
  const Recipe before = load_file("recipe.toml");
  const std::vector<std::string> overrides{"train.batch_size=4", "data.0.folder=elsewhere"};
  const Recipe after = changed(sent(before), overrides, test_components());
  const Recipe expected = load_file("recipe.toml", overrides);
  EXPECT_EQ(to_toml(after), to_toml(expected));
  EXPECT_EQ(after.paths_as_written, expected.paths_as_written);
  EXPECT_EQ(differences(before, after).size(), 2U);
}

TEST_F(ResolvedRecipe, MistakesOfAChangeAreInItOrInTheRecipesFile) {
  const Recipe recipe = sent(load_file("recipe.toml"));
  EXPECT_TRUE(error_of(recipe, {"train.batch_size=none"}).starts_with("--set train.batch_size=none: train.batch_size"));
  const std::string unlisted = error_of(recipe, {"memory.strategies=[\"full_checkpointing\"]"});
  EXPECT_TRUE(unlisted.starts_with("recipe.toml:4:1: [memory.fp8_weight_only] sets options")) << unlisted;
}

}  // namespace
}  // namespace trainer::recipe
