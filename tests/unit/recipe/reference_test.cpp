#include "fixture.hpp"

#include <recipe/reference.hpp>

#include <algorithm>
#include <cstdlib>

namespace trainer::recipe {
namespace {

namespace fs = std::filesystem;

fs::path source_root() {
  const char* root = std::getenv("TRAINER_SOURCE_ROOT");
  return root == nullptr ? "." : root;
}

/// The schemas of the plugins in this repository, from their manifest templates.
std::vector<ComponentSchema> repository_components() {
  std::vector<fs::path> files;
  for (const char* folder : {"plugins", "strategies"}) {
    for (const auto& entry : fs::recursive_directory_iterator(source_root() / folder)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".plugin.toml") || name.ends_with(".plugin.toml.in")) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<ComponentSchema> all;
  for (const fs::path& file : files)
    all.push_back(parse_component_schema(read_file(file, 1 << 20, "manifest"), file.string()));
  return all;
}

/// TRAINER_TEST_ACCEPT=1 writes the file instead of comparing.
TEST(Reference, TheCommittedFileIsFresh) {
  const fs::path file = source_root() / "docs/recipe-reference.md";
  const std::string text = reference_markdown(repository_components());
  const char* accept = std::getenv("TRAINER_TEST_ACCEPT");
  if (accept != nullptr && std::string(accept) == "1") write_file_atomically(file, text);
  EXPECT_EQ(read_file(file, 1 << 20, "reference"), text)
      << "run this test with TRAINER_TEST_ACCEPT=1 to write the file";
}

TEST(Reference, HoldsEveryKey) {
  const std::string text = reference_markdown({});
  for (const SectionSchema& section : sections()) {
    for (const OptionSpec& option : section.options) {
      EXPECT_NE(text.find("\n| `" + option.key + "`"), std::string::npos) << section.name << "." << option.key;
      EXPECT_FALSE(option.help.empty()) << option.key;
    }
  }
}

TEST(Explain, AKey) {
  EXPECT_EQ(explain("optimizer.lr", {}),
            "optimizer.lr\n  Learning rate after the warm-up.\n  type:    a number\n  default: 1e-4\n"
            "  valid:   above 0, at most 1000\n");
  EXPECT_EQ(explain("memory.budget", {}),
            "memory.budget\n  Device memory the run may use, like \"22GB\": the planner then chooses the strategies. "
            "Excludes strategies.\n  type:    an amount of memory like \"22GB\"\n  default: none\n");
  EXPECT_EQ(explain("adapter.alpha", test_components()).substr(0, 42), "adapter.alpha\n  Scale of the adapters, div");
  EXPECT_NE(explain("adapter.alpha", test_components()).find("\n  default: the value of rank\n"), std::string::npos);
  EXPECT_NE(
      explain("adapter.rank", test_components()).find("\n  default: 32; with a file in path what the file says\n"),
      std::string::npos);
  EXPECT_NE(explain("placement.device", {}).find("\n  also:    device\n"), std::string::npos);
  EXPECT_EQ(explain("data.0.folder", {}), explain("data.folder", {}));
  EXPECT_EQ(
      explain("memory.selective_checkpointing.save", test_components()),
      "memory.selective_checkpointing.save\n  What is kept.\n  type:    a list of strings\n  default: [\"attention\"]\n"
      "  valid:   \"attention\", \"matmul\"\n  of:      memory \"selective_checkpointing\"\n");
}

TEST(Explain, ASentenceEndsBeforeACapital) {
  ComponentSchema toy;
  toy.kind = "memory", toy.name = "toy";
  toy.options = {{.key = "a", .help = "As in Esser et al. 2024, e.g. 8 of them. Not shown."}};
  EXPECT_EQ(explain("memory.toy", {{toy}}), "memory \"toy\"\n  \n  a  As in Esser et al. 2024, e.g. 8 of them\n");
}

TEST(Explain, ASectionAndAComponent) {
  EXPECT_EQ(
      explain("checkpoint", {}),
      "[checkpoint]\n  What is saved when, and kept.\n"
      "  every            Steps between checkpoints (exact resume) and exports; 0: only at the end\n"
      "  keep             How many of the newest checkpoints stay on disk; 0: all\n"
      "  keep_every       Steps between checkpoints that stay for good besides the newest, a multiple of "
      "checkpoint.every; 0: none.\n"
      "  final_save_wait  How long the save after the last step, or after a signal, waits for room on a full disk "
      "before the run gives up\n"
      "  fallback         Folder, best on another disk, for the checkpoints that run.output takes no more because it "
      "is "
      "full or fails\n"
      "  reserve          Keep room on the disk for the last save (reserve.bin in run.output, twice the size of a "
      "checkpoint's tensors); it is used when the disk is full at the end.\n");
  EXPECT_EQ(explain("placement", test_components()),
            "[placement]\n  Which devices hold which part of the model.\n  kind       Name of the component, which a "
            "plugin offers.\n"
            "  devices    The devices to train on, for example \"cpu\" or [\"cuda:0\", \"cuda:1\"]; [\"sim:0\", "
            "\"sim:1\"] are simulated.\n"
            "  simulated  The memory of the simulated devices \"sim:0\", \"sim:1\", ..., one amount a device, e.g. "
            "[\"24GB\", \"24GB\"]: there are as many, and what does not fit is out of memory\n\n"
            "placement \"single\"\n  One device.\n  no options\n\n"
            "placement \"split\"\n  Several devices.\n  balance  Where the model is cut.\n");
  EXPECT_EQ(explain("memory.full_checkpointing", test_components()),
            "memory \"full_checkpointing\"\n  Recomputes blocks.\n  no options\n");
}

TEST(Explain, UnknownKeys) {
  const auto message = [](const char* key) {
    try {
      explain(key, test_components());
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::usage);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string listed = message("optimizer.learnrate");
  EXPECT_TRUE(listed.starts_with("there is no key \"optimizer.learnrate\" (known in [optimizer]: ")) << listed;
  EXPECT_NE(listed.find(" lr,"), std::string::npos) << listed;
  EXPECT_EQ(message("optimiser"), "there is no key \"optimiser\" (did you mean \"optimizer\"?)");
  EXPECT_EQ(message("rank"), "there is no key \"rank\" (did you mean \"adapter.rank\"?)");
}

}  // namespace
}  // namespace trainer::recipe
