/// @file A temporary folder as the current one, recipes in it, and the schemas of some plugins.
#pragma once

#include <base/files.hpp>
#include <recipe/load.hpp>
#include <trainer/sdk/error.hpp>

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace trainer::recipe {

/// The manifest of a plugin of this repository ("plugins/lora/lora"), as its template has it.
inline ComponentSchema repository_component(const std::string& plugin) {
  const char* root = std::getenv("TRAINER_SOURCE_ROOT");
  const std::filesystem::path file = std::filesystem::path(root == nullptr ? "." : root) / (plugin + ".plugin.toml.in");
  return parse_component_schema(read_file(file, 1 << 20, "manifest"), file.string());
}

inline const std::vector<ComponentSchema>& test_components() {
  static const std::vector<ComponentSchema> all = [] {
    const std::vector<std::string> manifests = {
        R"(name = "flux2"
kind = "model"
summary = "A model."
[[option]]
key = "text_ids"
type = "boolean"
default = false
help = "Whether text tokens have positions.")",
        R"(name = "mistral"
kind = "text_encoder"
summary = "A text encoder."
[[option]]
key = "max_tokens"
type = "integer"
default = 512
min = 1
max = 131072
help = "Tokens per caption."
[[option]]
key = "layers"
type = "integers"
default = [10, 20, 30]
min = 0
min_items = 1
help = "Tapped layers.")",
        R"(name = "flux2_vae"
kind = "autoencoder"
summary = "An autoencoder.")",
        R"(name = "full_checkpointing"
kind = "memory"
summary = "Recomputes blocks.")",
        R"(name = "selective_checkpointing"
kind = "memory"
summary = "Recomputes parts of blocks."
[[option]]
key = "save"
type = "strings"
default = ["attention"]
choices = ["attention", "matmul"]
help = "What is kept.")",
        R"(name = "fp8_weight_only"
kind = "memory"
summary = "Frozen weights in fp8."
[[option]]
key = "table"
type = "path"
help = "A table of scales.")",
        R"(name = "single"
kind = "placement"
summary = "One device.")",
        R"(name = "split"
kind = "placement"
summary = "Several devices."
[[option]]
key = "balance"
type = "string|integers"
default = "compute"
choices = ["compute", "memory"]
help = "Where the model is cut.")",
    };
    std::vector<ComponentSchema> made;
    for (const std::string& manifest : manifests) made.push_back(parse_component_schema(manifest, "test.plugin.toml"));
    for (const char* plugin : {"plugins/flow_matching/flow_matching", "plugins/lora/lora"})
      made.push_back(repository_component(plugin));
    return made;
  }();
  return all;
}

/// The shortest recipe that loads (paths need not exist).
inline const char* const kMinimal = R"([model]
path = "m"
[text_encoder]
path = "t"
[autoencoder]
path = "v"
[[data]]
folder = "d"
)";

class RecipeTest : public testing::Test {
 protected:
  void SetUp() override {
    before_ = std::filesystem::current_path();
    folder_ = std::filesystem::temp_directory_path() / ("recipe_test." + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    folder_ = std::filesystem::canonical(folder_);
    std::filesystem::current_path(folder_);
  }
  void TearDown() override {
    std::filesystem::current_path(before_);
    std::filesystem::remove_all(folder_);
  }

  static void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path(file);
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;  // no fsync: thousands of them
  }
  [[nodiscard]] std::string here(const std::string& path) const { return (folder_ / path).string(); }

  static Recipe load_file(const std::string& file, const std::vector<std::string>& overrides = {}, bool exist = false) {
    return load(file, overrides, test_components(), {.paths_must_exist = exist});
  }
  static Recipe load_text(const std::string& text, const std::vector<std::string>& overrides = {}) {
    write("recipe.toml", text);
    return load_file("recipe.toml", overrides);
  }
  /// The message of the error that loading ends with.
  static std::string message_of(const std::string& file, const std::vector<std::string>& overrides = {},
                                bool exist = false, ExitCode code = ExitCode::bad_recipe) {
    try {
      load_file(file, overrides, exist);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), code) << error.what();
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path before_, folder_;
};

}  // namespace trainer::recipe
