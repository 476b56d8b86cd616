#include "fixture.hpp"

#include <cstdlib>

namespace trainer::recipe {
namespace {

using Strings = std::vector<std::string>;

TEST_F(RecipeTest, TheShortestRecipeHasAllDefaults) {
  const Recipe recipe = load_text(kMinimal);
  EXPECT_EQ(recipe.run.name, "recipe");
  EXPECT_EQ(recipe.run.output, here("runs/recipe"));
  EXPECT_EQ(recipe.run.seed, 0);
  EXPECT_EQ(recipe.run.steps, 1000);
  EXPECT_EQ(recipe.model.kind, "flux2");
  EXPECT_EQ(recipe.model.path, here("m"));
  EXPECT_EQ(recipe.model.dtype, "bf16");
  EXPECT_EQ(recipe.model.options.get<bool>("text_ids"), false);
  EXPECT_EQ(recipe.text_encoder.kind, "mistral");
  EXPECT_EQ(recipe.text_encoder.tokenizer, here("tokenizer"));
  EXPECT_EQ(recipe.text_encoder.options.get<int64_t>("max_tokens"), 512);
  EXPECT_EQ(recipe.text_encoder.options.list<int64_t>("layers"), (std::vector<int64_t>{10, 20, 30}));
  EXPECT_EQ(recipe.autoencoder.kind, "flux2_vae");
  EXPECT_FALSE(recipe.adapter.has_value());
  EXPECT_EQ(recipe.objective.kind, "flow_matching");
  EXPECT_EQ(recipe.objective.options.get<std::string>("timesteps.shift"), "resolution");
  EXPECT_EQ(recipe.placement.kind, "single");
  EXPECT_EQ(recipe.placement.devices, Strings{"cpu"});
  EXPECT_TRUE(recipe.memory.components.empty());
  EXPECT_EQ(recipe.cache.folder, here("runs/recipe/cache"));
  EXPECT_EQ(recipe.sample.seeds, std::vector<int64_t>{42});
}

/// The complete example of the design.
const char* const kExample = R"([run]
name = "corgi"
output = "runs/corgi"
seed = 7
steps = 1500

[model]
kind = "flux2"
path = "models/flux2-dev/transformer"
dtype = "bf16"

[text_encoder]
kind = "mistral"
path = "models/flux2-dev/text_encoder"
tokenizer = "models/flux2-dev/tokenizer"
max_tokens = 512
layers = [10, 20, 30]     # tapped hidden states

[autoencoder]
kind = "flux2_vae"
path = "models/flux2-dev/vae"

[[data]]                  # any number of sources
folder = "photos/corgi"
trigger = "sks corgi"
repeats = 10
resolution = 512

[train]
batch_size = 4
micro_batch_size = 1
max_grad_norm = 1.0
caption_dropout = 0.05

[adapter]
kind = "lora"
rank = 16
alpha = 32
targets = "default"

[objective]
kind = "flow_matching"
timesteps = { distribution = "logit_normal", mean = 0.0, std = 1.0, shift = "resolution" }
guidance = 1.0

[optimizer]
kind = "adamw"
lr = 1e-4
schedule = { kind = "cosine", warmup_steps = 50 }

[memory]
strategies = ["fp8_weight_only", "selective_checkpointing"]   # or budget = "22GB"
[memory.selective_checkpointing]
save = ["attention"]

[placement]
kind = "split"
devices = ["cuda:0", "cuda:1"]
balance = "compute"

[sample]
every = 250
prompts = ["sks corgi on a beach"]
size = [512, 512]
steps = 28
guidance = 4.0
seed = 42

[checkpoint]
every = 250
keep = 3
)";

TEST_F(RecipeTest, TheExampleOfTheDesignLoads) {
  const Recipe recipe = load_text(kExample);
  EXPECT_EQ(recipe.run.name, "corgi");
  EXPECT_EQ(recipe.data.at(0).repeats, 10);
  EXPECT_EQ(recipe.data.at(0).resolution, std::vector<int64_t>{512});
  EXPECT_EQ(recipe.train.caption_dropout, 0.05);
  EXPECT_EQ(recipe.adapter->options.get<int64_t>("rank"), 16);
  EXPECT_EQ(recipe.adapter->options.get<double>("alpha"), 32.0);
  EXPECT_EQ(recipe.adapter->options.section(), "adapter");
  EXPECT_EQ(recipe.adapter->position.text(), "recipe.toml:35:1");
  EXPECT_EQ(recipe.optimizer.schedule, "cosine");
  EXPECT_EQ(recipe.optimizer.warmup_steps, 50);
  EXPECT_EQ(recipe.memory.components.size(), 2U);
  EXPECT_EQ(recipe.memory.components[0].kind, "fp8_weight_only");
  EXPECT_EQ(recipe.memory.components[1].options.section(), "memory.selective_checkpointing");
  EXPECT_EQ(recipe.memory.components[1].options.list<std::string>("save"), Strings{"attention"});
  EXPECT_EQ(recipe.placement.devices, (Strings{"cuda:0", "cuda:1"}));
  EXPECT_EQ(recipe.placement.options.get<std::string>("balance"), "compute");
}

TEST_F(RecipeTest, FormsOfTheSameValue) {
  const std::string text =
      std::string(kMinimal) +
      "resolution = [640, 384]\ncaptions = \".caption\"\n[adapter]\nrank = 8\n"
      "targets = [\"*.to_q\", \"*.to_k\"]\n[placement]\ndevice = \"cuda:1\"\n[sample]\nseeds = [1, 2]\n"
      "[objective]\ntimesteps.shift = 3\n[memory]\nbudget = \"22 GB\"\n[train]\nema = { decay = 0.999 }\n";
  const Recipe recipe = load_text(text);
  EXPECT_EQ(recipe.data[0].resolution, (std::vector<int64_t>{640, 384}));
  EXPECT_EQ(recipe.data[0].captions, Strings{".caption"});
  EXPECT_EQ(recipe.adapter->options.get<double>("alpha"), 8.0) << "alpha is rank when it is not given";
  EXPECT_EQ(recipe.adapter->options.list<std::string>("targets"), (Strings{"*.to_q", "*.to_k"}));
  EXPECT_EQ(recipe.placement.devices, Strings{"cuda:1"});
  EXPECT_EQ(recipe.sample.seeds, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(recipe.objective.options.get<double>("timesteps.shift"), 3.0);
  EXPECT_EQ(recipe.memory.budget, 22'000'000'000);
  EXPECT_EQ(recipe.train.ema_decay, 0.999);
}

/// What the file of an adapter says has a default only where there is no file.
TEST_F(RecipeTest, WhatAFileSaysHasNoDefaultBesideIt) {
  const Options fresh = load_text(std::string(kMinimal) + "[adapter]\n").adapter->options;
  EXPECT_EQ(fresh.get<int64_t>("rank"), 32);
  EXPECT_EQ(fresh.get<double>("alpha"), 32.0);
  const std::string from = std::string(kMinimal) + "[adapter]\ninit = \"file\"\npath = \"x\"\n";
  const Recipe recipe = load_text(from);
  EXPECT_FALSE(recipe.adapter->options.has("rank"));
  EXPECT_FALSE(recipe.adapter->options.has("alpha"));
  EXPECT_EQ(load_text(from + "rank = 4\n").adapter->options.get<int64_t>("rank"), 4) << "given, it is compared";
  const Recipe again = load_stored(to_toml(recipe), "stored", test_components());
  EXPECT_TRUE(differences(recipe, again).empty());
}

TEST_F(RecipeTest, AnInheritedAdapterIsDroppedByFalse) {
  write("base.toml", "[adapter]\nrank = 4\n" + std::string(kMinimal));
  write("all.toml", "extends = \"base.toml\"\nadapter = false\n");
  EXPECT_TRUE(load_file("base.toml").adapter);
  EXPECT_FALSE(load_file("all.toml").adapter);
  write("yes.toml", "extends = \"base.toml\"\nadapter = true\n");
  EXPECT_EQ(message_of("yes.toml"), "yes.toml:2:11: adapter: expected a table, found true");
}

TEST_F(RecipeTest, ExtendsMergesTablesAndReplacesTheRest) {
  write("bases/grand.toml", "[optimizer]\nlr = 1\nbetas = [0.1, 0.2]\n[run]\nsteps = 5\n" + std::string(kMinimal));
  write("bases/base.toml", "extends = \"grand.toml\"\n[optimizer]\nlr = 2\neps = 1e-6\n");
  write("top/recipe.toml",
        "extends = \"../bases/base.toml\"\n[optimizer]\nbetas = [0.5, 0.6]\n[[data]]\nfolder = \"mine\"\n");
  const Recipe recipe = load_file("top/recipe.toml");
  EXPECT_EQ(recipe.run.steps, 5);
  EXPECT_EQ(recipe.optimizer.lr, 2);
  EXPECT_EQ(recipe.optimizer.eps, 1e-6);
  EXPECT_EQ(recipe.optimizer.betas, (std::vector<double>{0.5, 0.6}));
  EXPECT_EQ(recipe.model.path, here("bases/m")) << "relative to the file it stands in";
  ASSERT_EQ(recipe.data.size(), 1U) << "lists are replaced";
  EXPECT_EQ(recipe.data[0].folder, here("top/mine"));
  EXPECT_EQ(recipe.run.output, here("runs/recipe"));
  write("bases/base.toml", "extends = \"grand.toml\"\n[optimizer]\nlr = -1\n");
  EXPECT_EQ(message_of("top/recipe.toml"),
            "bases/base.toml:3:6: optimizer.lr: -1 is out of range, expected above 0, at most 1000");
}

TEST_F(RecipeTest, ExtendsRefusesCyclesChainsAndMissingFiles) {
  write("a.toml", "extends = \"b.toml\"\n");
  write("b.toml", "\nextends = \"./a.toml\"\n");
  EXPECT_EQ(message_of("a.toml"), "b.toml:2:11: extends: \"a.toml\" extends itself");
  write("c.toml", "extends = \"bb.toml\"\n");
  EXPECT_EQ(message_of("c.toml"), "c.toml:1:11: extends: no such file or folder: " + here("bb.toml") +
                                      " (did you mean \"b.toml\", \"a.toml\" or \"c.toml\"?)");
  write("d.toml", "extends = 3\n");
  EXPECT_EQ(message_of("d.toml"), "d.toml:1:11: extends: expected the path of a recipe, found 3");
  for (int i = 0; i < 10; ++i)
    write("chain" + std::to_string(i) + ".toml", "extends = \"chain" + std::to_string(i + 1) + ".toml\"");
  EXPECT_EQ(message_of("chain0.toml"), "chain8.toml:1:11: extends: more than 8 recipes in a row");
}

TEST_F(RecipeTest, OverridesReplaceSingleKeys) {
  const Recipe recipe =
      load_text(kMinimal, {"optimizer.lr=2e-4", "optimizer.lr=3e-4", "run.name=cat", "model.path=./w",
                           "data.0.repeats=3", "optimizer.schedule.kind=cosine", "train={batch_size=2}",
                           "sample.prompts=[\"a = b\"]", "placement.devices=cuda:0", "adapter.rank=4"});
  EXPECT_EQ(recipe.optimizer.lr, 3e-4);
  EXPECT_EQ(recipe.run.name, "cat");
  EXPECT_EQ(recipe.model.path, here("w"));
  EXPECT_EQ(recipe.data[0].repeats, 3);
  EXPECT_EQ(recipe.optimizer.schedule, "cosine");
  EXPECT_EQ(recipe.train.batch_size, 2);
  EXPECT_EQ(recipe.sample.prompts, Strings{"a = b"});
  EXPECT_EQ(recipe.placement.devices, Strings{"cuda:0"});
  EXPECT_EQ(recipe.adapter->options.get<int64_t>("rank"), 4);
  EXPECT_EQ(load_text(kMinimal, {"data.0.trigger=a\nb = 2"}).data[0].trigger, "a\nb = 2")
      << "a line break makes no second key";
}

TEST_F(RecipeTest, OverriddenPathsBelongToTheCurrentFolder) {
  write("sub/recipe.toml", kMinimal);
  EXPECT_EQ(load_file("sub/recipe.toml").model.path, here("sub/m"));
  EXPECT_EQ(load_file("sub/recipe.toml", {"model.path=m"}).model.path, here("m"));
  EXPECT_EQ(load_file("sub/recipe.toml", {"run.output=out/"}).run.output, here("out"));
  EXPECT_EQ(load_file(here("sub/recipe.toml")).model.path, here("sub/m"));
}

TEST_F(RecipeTest, VariablesInPaths) {
  setenv("TRAINER_DATA", "/data/${HOME}", 1);
  setenv("TRAINER_MODELS", "/models", 1);
  const std::string old_home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  setenv("HOME", "/home/me", 1);
  const Recipe recipe = load_text(
      kMinimal, {"model.path=${TRAINER_MODELS}/flux/", "autoencoder.path=~/vae", "data.0.folder=${TRAINER_DATA}/x",
                 "text_encoder.path=/a/$${HOME}/$x", "data.0.trigger=${HOME}"});
  EXPECT_EQ(recipe.model.path, "/models/flux");
  EXPECT_EQ(recipe.autoencoder.path, "/home/me/vae");
  EXPECT_EQ(recipe.data[0].folder, "/data/${HOME}/x") << "expanded once";
  EXPECT_EQ(recipe.text_encoder.path, "/a/${HOME}/$x");
  EXPECT_EQ(recipe.data[0].trigger, "${HOME}") << "only paths are expanded";
  EXPECT_EQ(recipe.paths_as_written.at("model.path"), "${TRAINER_MODELS}/flux/");
  setenv("HOME", old_home.c_str(), 1);
}

/// A checkpoint keeps the recipe in JSON, which has no other text.
TEST_F(RecipeTest, PathsAndOverridesAreUtf8) {
  write("recipe.toml", kMinimal);
  const std::string why = "\\xff\" is not UTF-8: rename the folder, or name a link to it";
  setenv("TRAINER_DATA", "/a\xff", 1);
  EXPECT_EQ(message_of("recipe.toml", {"run.output=${TRAINER_DATA}"}),
            "--set run.output=${TRAINER_DATA}: run.output: the path \"/a" + why);
  unsetenv("TRAINER_DATA");
  for (const char* text : {"run.output=/a\xff", "run.name=\xff", "run.name='\xc3'"}) {
    const std::string message = message_of("recipe.toml", {text});
    EXPECT_NE(message.find("the value is not UTF-8: "), std::string::npos) << message;
  }
  write("b\xff/recipe.toml", kMinimal);
  EXPECT_NE(message_of("b\xff/recipe.toml").find("b\\xff/m\" is not UTF-8: "), std::string::npos) << "its folder";
}

TEST_F(RecipeTest, PathsMustExist) {
  write("models/transformer/x", "");
  write("models/text_encoder/x", "");
  write("models/vae/x", "");
  write("photos/cat.png", "");
  write("recipe.toml",
        "[model]\npath = \"models/transfomer\"\n[text_encoder]\npath = \"models/text_encoder\"\n"
        "tokenizer = \"nowhere/tokenizer\"\n[autoencoder]\npath = \"models/vae\"\n[[data]]\nfolder = \"photos\"\n");
  EXPECT_EQ(message_of("recipe.toml", {}, true),
            "recipe.toml:2:8: model.path: no such file or folder: " + here("models/transfomer") +
                " (did you mean \"transformer\"?)\nrecipe.toml:5:13: text_encoder.tokenizer: no such file or folder: " +
                here("nowhere/tokenizer"));
  EXPECT_EQ(
      load_file("recipe.toml", {"model.path=models/transformer", "text_encoder.tokenizer=models/vae"}, true).model.path,
      here("models/transformer"));
}

TEST_F(RecipeTest, CheckSyntaxReadsTheFileAndItsBases) {
  write("base.toml", "[run]\nsteps = = 3\n");
  write("recipe.toml", "extends = \"base.toml\"\n[nonsense]\n");
  try {
    check_syntax("recipe.toml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("base.toml:2:9: not valid TOML: ")) << error.what();
    EXPECT_TRUE(std::string(error.what()).ends_with("\n  steps = = 3")) << error.what();
  }
  write("base.toml", "[run]\nsteps = 3\n");
  check_syntax("recipe.toml");
}

}  // namespace
}  // namespace trainer::recipe
