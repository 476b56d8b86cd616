/// @file Recipes whose objective trains on texts alone, and encoders that read no files: what a manifest `needs`.
#include "fixture.hpp"

namespace trainer::recipe {
namespace {

const std::vector<ComponentSchema>& components() {
  static const std::vector<ComponentSchema> all = [] {
    std::vector<ComponentSchema> list = test_components();
    for (const char* manifest : {"name = \"next_token\"\nkind = \"objective\"\nsummary = \"s\"\nneeds = [\"texts\"]\n",
                                 "name = \"bytes\"\nkind = \"text_encoder\"\nsummary = \"s\"\nneeds = []\n",
                                 "name = \"ids\"\nkind = \"text_encoder\"\nsummary = \"s\"\nneeds = [\"tokenizer\"]\n"})
      list.push_back(parse_component_schema(manifest, "test.plugin.toml"));
    return list;
  }();
  return all;
}

class Texts : public RecipeTest {
 protected:
  static Recipe load_with(const std::string& more, const std::string& encoder = "kind = \"bytes\"\n") {
    write("recipe.toml", "[model]\npath = \"m\"\n[text_encoder]\n" + encoder +
                             "[objective]\nkind = \"next_token\"\n[[data]]\nfolder = \"d\"\n" + more);
    return load("recipe.toml", {}, components(), {.paths_must_exist = false});
  }
  static std::string message_with(const std::string& more, const std::string& encoder = "kind = \"bytes\"\n") {
    try {
      load_with(more, encoder);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
      return error.what();
    }
    return "no error";
  }
};

TEST_F(Texts, NeedNoAutoencoderAndNoFilesOfAnEncoder) {
  const Recipe recipe = load_with("");
  EXPECT_FALSE(recipe.pictures());
  EXPECT_EQ(recipe.autoencoder.kind, "");
  EXPECT_EQ(recipe.text_encoder.path, "");
  EXPECT_EQ(recipe.text_encoder.tokenizer, "");
  write("again.toml", to_toml(recipe));
  const Recipe again = load("again.toml", {}, components(), {.paths_must_exist = false});
  EXPECT_TRUE(differences(recipe, again).empty()) << "the resolved recipe is one, too";
  EXPECT_TRUE(load_text(kMinimal).pictures());
}

TEST_F(Texts, AnEncoderMayReadATokenizerAlone) {
  EXPECT_EQ(load_with("", "kind = \"ids\"\ntokenizer = \"t\"\n").text_encoder.tokenizer, here("t"));
  EXPECT_EQ(message_with("", "kind = \"ids\"\n"),
            "recipe.toml:3:1: missing key \"text_encoder.tokenizer\": Folder with tokenizer.json, or the file itself.");
  EXPECT_EQ(message_with("", "kind = \"ids\"\ntokenizer = \"t\"\npath = \"p\"\n"),
            "recipe.toml:6:8: text_encoder.path: \"ids\" reads no weights; leave the key out");
}

TEST_F(Texts, WhatIsAboutPicturesIsRefused) {
  const std::string why = ": the objective \"next_token\" trains on texts alone; ";
  EXPECT_EQ(message_with("resolution = 64\nupscale = false\n"),
            "recipe.toml:9:14: data.0.resolution" + why + "leave the key out\nrecipe.toml:10:11: data.0.upscale" + why +
                "leave the key out");
  EXPECT_EQ(message_with("[sample]\nprompts = [\"a fox\"]\n"),
            "recipe.toml:10:11: sample.prompts" + why + "there is nothing to draw");
  EXPECT_EQ(message_with("[autoencoder]\npath = \"v\"\n"),
            "recipe.toml:9:1: autoencoder: the objective \"next_token\" trains on texts, there is nothing to encode; "
            "leave the section out");
  EXPECT_EQ(message_with("", "kind = \"bytes\"\npath = \"p\"\n"),
            "recipe.toml:5:8: text_encoder.path: \"bytes\" reads no weights; leave the key out");
}

TEST_F(Texts, NeedsAreCheckedInTheManifest) {
  const auto message = [](const std::string& kind, const std::string& needs) {
    try {
      parse_component_schema("name = \"x\"\nkind = \"" + kind + "\"\nsummary = \"s\"\nneeds = " + needs + "\n",
                             "x.toml");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message("objective", "[\"films\"]"),
            "x.toml:4:9: needs: a component of kind \"objective\" may have [\"pictures\"] or [\"texts\"]");
  EXPECT_EQ(message("text_encoder", "[\"weights\"]"),
            "x.toml:4:9: needs: a component of kind \"text_encoder\" may have [\"weights\", \"tokenizer\"] or "
            "[\"tokenizer\"] or []");
  EXPECT_EQ(message("memory", "[\"weights\"]"), "x.toml:4:9: needs: a component of kind \"memory\" may have []");
  EXPECT_EQ(message("memory", "[]"), "no error");
}

}  // namespace
}  // namespace trainer::recipe
