#include "fixture.hpp"

#include <recipe/compose.hpp>

namespace trainer::recipe {
namespace {

/// A recipe of eight good lines (kMinimal), what is added after them, and the whole message.
struct Case {
  const char* added;
  const char* message;
};

const Case kCases[] = {
    // unknown names
    {"[trian]\nx = 1\n", R"(recipe.toml:9:2: unknown section "trian" (did you mean "train"?))"},
    {"[zzzzz]\n", R"(recipe.toml:9:2: unknown section "zzzzz")"},
    {"[optimizer]\nlearning_rat = 1\n",
     R"(recipe.toml:10:1: unknown key "optimizer.learning_rat"; keys of [optimizer]: kind, lr, betas, eps, weight_decay, schedule.kind, schedule.warmup_steps, schedule.min_factor, schedule.cycles, fused_backward)"},
    {"[run]\nlr = 1\n", R"(recipe.toml:10:1: unknown key "run.lr" (did you mean "optimizer.lr"?))"},
    {"[train]\nbatch = 1\n", R"(recipe.toml:10:1: unknown key "train.batch" (did you mean "train.batch_size"?))"},
    {"[train]\nema.decy = 0.5\n",
     R"(recipe.toml:10:5: unknown key "train.ema.decy" (did you mean "train.ema.decay"?))"},
    {"[adapter]\nalhpa = 1\n", R"(recipe.toml:10:1: unknown key "adapter.alhpa" (did you mean "adapter.alpha"?))"},
    {"[[data]]\nfolder = \"e\"\nrepeat = 2\n",
     R"(recipe.toml:11:1: unknown key "data.1.repeat" (did you mean "data.1.repeats"?))"},
    {"[objective]\ntimesteps = { distribtion = \"mode\" }\n",
     R"(recipe.toml:10:15: unknown key "objective.timesteps.distribtion" (did you mean "objective.timesteps.distribution"?))"},
    {"[memory]\nstrategy = []\n",
     R"(recipe.toml:10:1: unknown key "memory.strategy" (did you mean "memory.strategies"?))"},
    // wrong types
    {"[run]\nsteps = \"many\"\n", R"(recipe.toml:10:9: run.steps: expected an integer, found the string "many")"},
    {"[run]\nsteps = 10.0\n", R"(recipe.toml:10:9: run.steps: expected an integer, found 10.0)"},
    {"[run]\nsteps = true\n", R"(recipe.toml:10:9: run.steps: expected an integer, found true)"},
    {"[run]\nsteps = [1]\n", R"(recipe.toml:10:9: run.steps: expected an integer, found a list)"},
    // what depends on a wrong value is not judged by its default
    {"[train]\nbatch_size = 8.5\nmicro_batch_size = 2\n",
     R"(recipe.toml:10:14: train.batch_size: expected an integer, found 8.5)"},
    {"[run]\nsteps = 0\n[optimizer]\nschedule.warmup_steps = 2000\n",
     R"(recipe.toml:10:9: run.steps: 0 is out of range, expected 1 to 1000000000)"},
    {"[run]\nname = 3\n", R"(recipe.toml:10:8: run.name: expected a string, found 3)"},
    {"[run]\nname = 2020-01-01\n", R"(recipe.toml:10:8: run.name: expected a string, found a date or time)"},
    {"[sample]\nbefore = 1\n", R"(recipe.toml:10:10: sample.before: expected true or false, found 1)"},
    {"[sample]\nprompts = \"one\"\n",
     R"(recipe.toml:10:11: sample.prompts: expected a list of strings, found the string "one")"},
    {"[sample]\nprompts = [\"a\", 2]\n", R"(recipe.toml:10:17: sample.prompts[1]: expected a string, found 2)"},
    {"[train]\nmax_grad_norm = { a = 1 }\n",
     R"(recipe.toml:10:17: train.max_grad_norm: expected a number, found a table)"},
    {"[optimizer]\nschedule = \"cosine\"\n",
     R"(recipe.toml:10:12: optimizer.schedule: expected a table with kind, warmup_steps, min_factor, cycles, found the string "cosine")"},
    {"[[data]]\nfolder = 7\n", R"(recipe.toml:10:10: data.1.folder: expected a path, found 7)"},
    {"[adapter]\ntargets = 1\n",
     R"(recipe.toml:10:11: adapter.targets: expected a string or a list of strings, found 1)"},
    {"[adapter]\nkind = 1\n", R"(recipe.toml:10:8: adapter.kind: expected a string, found 1)"},
    // ranges
    {"[run]\nsteps = 0\n", R"(recipe.toml:10:9: run.steps: 0 is out of range, expected 1 to 1000000000)"},
    {"[run]\nseed = -1\n", R"(recipe.toml:10:8: run.seed: -1 is out of range, expected at least 0)"},
    {"[optimizer]\nlr = 0\n", R"(recipe.toml:10:6: optimizer.lr: 0 is out of range, expected above 0, at most 1000)"},
    {"[optimizer]\nlr = nan\n", R"(recipe.toml:10:6: optimizer.lr: expected a finite number, found nan)"},
    {"[optimizer]\nweight_decay = +inf\n",
     R"(recipe.toml:10:16: optimizer.weight_decay: expected a finite number, found inf)"},
    {"[optimizer]\nbetas = [0.9, 1.5]\n",
     R"(recipe.toml:10:15: optimizer.betas[1]: 1.5 is out of range, expected 0 to 0.9999999)"},
    {"[optimizer]\nbetas = [0.9]\n", R"(recipe.toml:10:9: optimizer.betas: expected 2 items, found 1)"},
    {"[train]\ncaption_dropout = 5e-324\nmax_grad_norm = -0.5\n",
     R"(recipe.toml:11:17: train.max_grad_norm: -0.5 is out of range, expected at least 0)"},
    {"[sample]\nsize = [512, 500]\n", R"(recipe.toml:10:14: sample.size[1]: 500 is not a multiple of 16)"},
    {"[sample]\nsize = [512, 512, 512]\n", R"(recipe.toml:10:8: sample.size: expected 2 items, found 3)"},
    {"[[data]]\nfolder = \"e\"\nresolution = []\n",
     R"(recipe.toml:11:14: data.1.resolution: expected 1 to 2 items, found 0)"},
    {"[sample]\nseeds = []\n", R"(recipe.toml:10:9: sample.seeds: expected at least 1 item, found 0)"},
    {"[memory]\nbudget = \"lots\"\n",
     R"(recipe.toml:10:10: memory.budget: expected an amount of memory like "22GB" or "512 MiB", found "lots")"},
    // choices
    {"[optimizer]\nschedule.kind = \"cosin\"\n",
     R"(recipe.toml:10:17: optimizer.schedule.kind: unknown value "cosin" (did you mean "cosine"?); valid: "constant", "linear", "cosine", "cosine_restarts")"},
    {"[adapter]\ntargets = \"to_q\"\n",
     R"(recipe.toml:10:11: adapter.targets: unknown value "to_q"; valid: "default", "all" or a list of strings)"},
    {"[objective]\ntimesteps.shift = \"resolutoin\"\n",
     R"(recipe.toml:10:19: objective.timesteps.shift: unknown value "resolutoin" (did you mean "resolution"?); valid: "none", "resolution" or a number)"},
    {"[memory]\nstrategies = [\"selective_checkpointing\"]\nselective_checkpointing.save = [\"attentoin\"]\n",
     R"(recipe.toml:11:33: memory.selective_checkpointing.save[0]: unknown value "attentoin" (did you mean "attention"?); valid: "attention", "matmul")"},
    // components
    {"[adapter]\nkind = \"lroa\"\nrank = 3\n",
     R"(recipe.toml:10:8: adapter.kind: there is no adapter "lroa" (did you mean "lora"?); available: lora)"},
    {"[placement]\nkind = \"quantum\"\n",
     R"(recipe.toml:10:8: placement.kind: there is no placement "quantum"; available: single, split)"},
    {"[memory]\nstrategies = [\"fp8\", \"full_checkpoint\"]\n",
     "recipe.toml:10:15: memory.strategies: there is no memory strategy \"fp8\" (did you mean \"fp8_weight_only\"?); "
     "available: full_checkpointing, selective_checkpointing, fp8_weight_only\n"
     "recipe.toml:10:22: memory.strategies: there is no memory strategy \"full_checkpoint\" (did you mean "
     "\"full_checkpointing\"?); available: full_checkpointing, selective_checkpointing, fp8_weight_only"},
    {"[memory]\nstrategies = [\"full_checkpointing\", \"full_checkpointing\"]\n",
     R"(recipe.toml:10:37: memory.strategies: "full_checkpointing" is listed twice)"},
    {"[memory]\nstrategies = [\"selective_checkpointing\"]\n[memory.full_checkpointing]\n",
     R"(recipe.toml:11:1: [memory.full_checkpointing] sets options of a strategy that memory.strategies does not list)"},
    {"[memory]\nstrategies = 3\n[memory.full_checkpointing]\n",
     R"(recipe.toml:10:14: memory.strategies: expected a list of strings, found 3)"},
    {"[memory]\nstrategies = [\"full_checkpointing\"]\nfull_checkpointing = 1\n",
     R"(recipe.toml:11:1: unknown key "memory.full_checkpointing"; keys of [memory]: strategies, budget, verify)"},
    // several keys together
    {"[train]\nbatch_size = 4\nmicro_batch_size = 3\n",
     "recipe.toml:11:20: train.micro_batch_size: 3 does not divide train.batch_size 4"},
    {"[run]\nsteps = 10\n[optimizer.schedule]\nwarmup_steps = 11\n",
     "recipe.toml:12:16: optimizer.schedule.warmup_steps: 11 is more than the 10 of run.steps: lr would never be "
     "reached"},
    {"[optimizer]\nfused_backward = true\n",
     "recipe.toml:10:18: optimizer.fused_backward: parameters are updated before the norm of all gradients is known, "
     "so "
     "train.max_grad_norm (its default) cannot be kept to; set train.max_grad_norm = 0, or leave out "
     "optimizer.fused_backward"},
    {"[optimizer]\nfused_backward = true\n[train]\nmax_grad_norm = 0.5\nbatch_size = 6\nmicro_batch_size = 2\n",
     "recipe.toml:10:18: optimizer.fused_backward: parameters are updated before the norm of all gradients is known, "
     "so "
     "train.max_grad_norm (recipe.toml:12:17) cannot be kept to; set train.max_grad_norm = 0, or leave out "
     "optimizer.fused_backward\n"
     "recipe.toml:10:18: optimizer.fused_backward: parameters are updated in the first backward, so gradients cannot "
     "be "
     "accumulated over 3 micro-batches; set train.micro_batch_size (recipe.toml:14:20) to the train.batch_size of 6, "
     "or "
     "leave out optimizer.fused_backward"},
    {"[memory]\nstrategies = [\"full_checkpointing\"]\nbudget = \"1GB\"\n",
     "recipe.toml:11:10: memory.budget: the planner chooses the strategies; leave out memory.budget or "
     "memory.strategies (where an extended recipe has the latter: memory.strategies = [])"},
    {"[checkpoint]\nkeep_every = 300\n",
     "recipe.toml:10:14: checkpoint.keep_every: 300 is no multiple of checkpoint.every 250: there would be no "
     "checkpoint "
     "of most of its steps"},
    {"[checkpoint]\nevery = 0\nkeep_every = 500\n",
     "recipe.toml:11:14: checkpoint.keep_every: 500 is no multiple of checkpoint.every 0: there would be no checkpoint "
     "of most of its steps"},
    {"[checkpoint]\nkeep = 0\nkeep_every = 500\n",
     "recipe.toml:11:14: checkpoint.keep_every: checkpoint.keep = 0 keeps all; leave out one of the two"},
    {"[placement]\ndevices = [\"cpu\"]\ndevice = \"cpu\"\n",
     R"(recipe.toml:11:1: placement.device: "placement.devices" is given too; they are the same key)"},
    {"[placement]\ndevices = [\"cpu\", \"gpu 1\"]\n",
     R"(recipe.toml:10:11: placement.devices: "gpu 1" is no device; write "cpu" or "cuda:0", with the number of the card)"},
    {"[run]\nname = "
     "\"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
     "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn\"\n",
     R"(recipe.toml:10:8: run.name: has 201 bytes; at most 200 fit into the names of the run's files)"},
    {"[run]\nname = \"a/b\"\n",
     R"(recipe.toml:10:8: run.name: "a/b" is no file name: no "/" or control characters, no "." or "-" at the start)"},
    {"[run]\nname = \"a\\tb\"\n",
     R"(recipe.toml:10:8: run.name: "a\tb" is no file name: no "/" or control characters, no "." or "-" at the start)"},
    {"[adapter]\ninit = \"file\"\n",
     R"(recipe.toml:10:8: adapter.init: "file" needs adapter.path, the LoRA to start from)"},
    {"[adapter]\ninit = \"file\"\npath = 3\n", R"(recipe.toml:11:8: adapter.path: expected a path, found 3)"},
    {"[adapter]\npath = \"x\"\n", R"(recipe.toml:10:8: adapter.path: it is only used with adapter.init = "file")"},
    {"[[data]]\nfolder = \"e\"\nmetadata = \"/x.txt\"\n",
     R"(recipe.toml:9:1: data.1.metadata: expected a .jsonl or .csv file, found "/x.txt")"},
    // required keys and sections
    {"[[data]]\ntrigger = \"x\"\n",
     R"(recipe.toml:9:1: missing key "data.1.folder": Folder with pictures (jpeg, png, webp, avif, heic, tiff).)"},
    {"[[data]]\nfolder = \"\"\n", R"(recipe.toml:10:10: data.1.folder: must not be empty)"},
    {"[[data]]\nfolder = \"a\\u0000b\"\n", R"(recipe.toml:10:10: data.1.folder: the path holds a NUL character)"},
    {"[cache]\nfolder = \"${PATH}/x\"\n",
     R"(recipe.toml:10:10: cache.folder: "${PATH}/x": the variable "PATH" may not be used in a recipe, only HOME, XDG_CACHE_HOME, TRAINER_DATA, TRAINER_MODELS)"},
    {"[cache]\nfolder = \"${TRAINER_DATA}\"\n",
     R"(recipe.toml:10:10: cache.folder: "${TRAINER_DATA}": the environment variable TRAINER_DATA is not set)"},
    {"[cache]\nfolder = \"a${HOME\"\n",
     R"(recipe.toml:10:10: cache.folder: "a${HOME": a "${" without "}" (write "$${" for the characters themselves))"},
};

class RecipeErrors : public RecipeTest, public testing::WithParamInterface<Case> {};

TEST_P(RecipeErrors, Message) {
  unsetenv("TRAINER_DATA");
  write("recipe.toml", std::string(kMinimal) + GetParam().added);
  EXPECT_EQ(message_of("recipe.toml"), GetParam().message);
}
INSTANTIATE_TEST_SUITE_P(All, RecipeErrors, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::to_string(info.index); });

/// The same for --set, on the good recipe.
const Case kOverrideCases[] = {
    {"optimizer.lr", "--set optimizer.lr: expected KEY=VALUE, for example --set optimizer.lr=2e-4"},
    {"=3", "--set =3: expected KEY=VALUE, for example --set optimizer.lr=2e-4"},
    {"a..b=3", "--set a..b=3: expected KEY=VALUE, for example --set optimizer.lr=2e-4"},
    {"optimizer.lr=1e-4x", R"(--set optimizer.lr=1e-4x: optimizer.lr: expected a number, found the string "1e-4x")"},
    {"optimizer.rl=1", R"(--set optimizer.rl=1: unknown key "optimizer.rl" (did you mean "optimizer.lr"?))"},
    {"lr=1", R"(--set lr=1: unknown key "lr" (did you mean "optimizer.lr"?))"},
    {"sample.prompts=[a]", "--set sample.prompts=[a]: the value is not valid TOML: [a]"},
    {"data.folder=x",
     R"(--set data.folder=x: "folder" stands for an item of a list: write its number, counted from 0)"},
    {"data.0x.folder=x",
     R"(--set data.0x.folder=x: "0x" stands for an item of a list: write its number, counted from 0)"},
    {"data.99999999999999999999.folder=x",
     R"(--set data.99999999999999999999.folder=x: "99999999999999999999" stands for an item of a list: write its number, counted from 0)"},
    {"data.1.folder=x", "--set data.1.folder=x: there is no item 1, the list has 1"},
    {"model.path.x=1", R"(--set model.path.x=1: "x" stands below a value that is no table: the string "m")"},
    {"train.micro_batch_size=2",
     "--set train.micro_batch_size=2: train.micro_batch_size: 2 does not divide train.batch_size 1"},
};

class OverrideErrors : public RecipeTest, public testing::WithParamInterface<Case> {};

TEST_P(OverrideErrors, Message) {
  write("recipe.toml", kMinimal);
  EXPECT_EQ(message_of("recipe.toml", {GetParam().added}), GetParam().message);
}
INSTANTIATE_TEST_SUITE_P(All, OverrideErrors, testing::ValuesIn(kOverrideCases),
                         [](const auto& info) { return std::to_string(info.index); });

TEST_F(RecipeTest, AllMistakesAreReportedInOrder) {
  write("recipe.toml",
        "[checkpoint]\nkeep = -1\n[run]\nsteps = 0\nsead = 3\n[model]\nkind = \"flux3\"\npath = \"m\"\n");
  EXPECT_EQ(
      message_of("recipe.toml", {"x.y=1", "train.batch_size=0"}),
      "recipe.toml:1:1: missing key \"text_encoder.path\": Weights of the text encoder: a folder, a sharded folder "
      "or a single file.\n"
      "recipe.toml:1:1: missing key \"autoencoder.path\": Weights of the autoencoder: a folder or a single file.\n"
      "recipe.toml:1:1: data: expected at least one [[data]] table, there is none\n"
      "recipe.toml:2:8: checkpoint.keep: -1 is out of range, expected at least 0\n"
      "recipe.toml:4:9: run.steps: 0 is out of range, expected 1 to 1000000000\n"
      "recipe.toml:5:1: unknown key \"run.sead\" (did you mean \"run.seed\"?)\n"
      "recipe.toml:7:8: model.kind: there is no model \"flux3\" (did you mean \"flux2\"?); available: flux2\n"
      "--set train.batch_size=0: train.batch_size: 0 is out of range, expected 1 to 1000000\n"
      "--set x.y=1: unknown section \"x\"");
}

TEST_F(RecipeTest, SectionsOfTheWrongForm) {
  write("recipe.toml", "train = 3\nmodel = \"x\"\n" + std::string(kMinimal).substr(18) + "[run]\n");
  EXPECT_EQ(message_of("recipe.toml"),
            "recipe.toml:1:9: train: expected a table, found 3\nrecipe.toml:2:9: model: expected a table, found the "
            "string \"x\"");
  write("recipe.toml", std::string(kMinimal).substr(0, 70) + "[data]\nfolder = \"x\"\n");
  EXPECT_EQ(message_of("recipe.toml"), "recipe.toml:7:1: data: expected at least one [[data]] table, found a table");
}

TEST_F(RecipeTest, WrongBases) {
  const std::string secret = "root:secret:1\n";
  write("secret.txt", secret);
  write("secret.toml", secret);
  for (const char* ending : {"txt", "toml"}) {
    write("of_strangers.toml", "extends = \"secret." + std::string(ending) + "\"\n");
    const std::string message = message_of("of_strangers.toml");
    EXPECT_TRUE(message.starts_with("secret." + std::string(ending) + ":1:")) << message;
    EXPECT_EQ(message.find("root:secret") == std::string::npos, ending == std::string("txt")) << message;
  }
  write("plain", "a = = 1\n");
  EXPECT_TRUE(message_of("plain").ends_with("\n  a = = 1")) << "the user's own recipe is shown";
  write("empty.toml", "extends = \"\"\n");
  EXPECT_EQ(message_of("empty.toml"), "empty.toml:1:11: extends: expected the path of a recipe, found the string \"\"");
  write("variable.toml", "extends = \"${PATH}/x.toml\"\n");
  EXPECT_EQ(message_of("variable.toml"),
            "variable.toml:1:11: extends: \"${PATH}/x.toml\": the variable \"PATH\" may not be used in a recipe, only "
            "HOME, XDG_CACHE_HOME, TRAINER_DATA, TRAINER_MODELS");
  write("base.toml", kMinimal);
  const std::string stored = "extends = \"base.toml\"\n";
  write("stored.toml", stored);
  EXPECT_NO_THROW(read_with_bases("stored.toml"));
  try {
    read_stored(stored, "stored.toml");
    FAIL() << "another file was read";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "stored.toml:1:11: extends: a stored recipe is complete and extends no other");
  }
}

TEST_F(RecipeTest, ValidationHasSomethingToBeAbout) {
  write("recipe.toml", std::string(kMinimal) + "\n[validation]\nevery = 5\n");
  EXPECT_NE(message_of("recipe.toml").find("validation.every: no samples are held out; set validation.fraction"),
            std::string::npos);
  EXPECT_EQ(message_of("recipe.toml", {"validation.fraction=0.1"}), "no error");
  EXPECT_EQ(message_of("recipe.toml", {"validation.fraction=0"}), "no error") << "switched off";
  EXPECT_NE(message_of("recipe.toml", {"data.0.validation=true"}).find("data: every source has validation = true"),
            std::string::npos);
}

TEST_F(RecipeTest, AStoredRecipeIsCheckedAsAFileIs) {
  const auto told = [](const std::string& text) {
    try {
      (void)load_stored(text, "stored", test_components());
      return std::string("accepted");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(told(kMinimal), "accepted");
  EXPECT_NE(told(std::string(kMinimal) + "[runs]\n").find("unknown section \"runs\""), std::string::npos);
  EXPECT_EQ(told("[run\n").find("stored:1:"), 0U);
  EXPECT_EQ(told(std::string((1 << 20) + 1, '\n')), "stored is larger than 1048576 bytes");
}

TEST_F(RecipeTest, MissingFiles) {
  EXPECT_EQ(message_of("nope.toml", {}, false, ExitCode::not_found),
            "cannot open recipe nope.toml: No such file or directory");
  EXPECT_EQ(message_of(".", {}, false, ExitCode::bad_input), "recipe . is a folder");
}

}  // namespace
}  // namespace trainer::recipe
