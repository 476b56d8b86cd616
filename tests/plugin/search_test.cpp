/// @file The search path: which of several counts, and what is said when none is there.
#include "folder.hpp"

namespace trainer::plugin {
namespace {

TEST(Search, TheFirstFolderWinsPerKindAndName) {
  Folder first, second;
  first.add_manifest("a", {{"summary", "\"mine\""}});
  second.add_manifest("a", {{"summary", "\"theirs\""}});
  second.add_manifest("b");
  second.add_manifest("a_placement", {{"name", "\"a\""}, {"kind", "\"placement\""}});
  const auto summaries = [](const Found& found) {
    std::vector<std::string> list;
    for (const Manifest& manifest : found.manifests)
      list.push_back(manifest.schema.kind + " " + manifest.schema.name + " " + manifest.schema.summary);
    return list;
  };
  EXPECT_EQ(summaries(find_manifests({{first.path(), "1"}, {second.path(), "2"}})),
            (std::vector<std::string>{"memory a mine", "placement a for a test", "memory b for a test"}))
      << "in order of folder, then file name";
}

/// Nobody could tell which of the two a run used, so neither is: by name, and wherever recipes are read.
TEST(Search, APluginMayNotTakeTheNameOfOneOfTheProgram) {
  Folder theirs, ours;
  theirs.add_manifest("a");
  theirs.add_manifest("b");
  theirs.add_manifest("flow_matching", {{"kind", "\"objective\""}});
  ours.add_manifest("a");
  ours.add_manifest("flow_matching", {{"kind", "\"objective\""}});
  const Found found = find_manifests({{theirs.path(), "--plugin-dir"}, {ours.path(), "installed"}});
  ASSERT_EQ(found.clashes.size(), 2U);
  for (const std::string& file : {(theirs.path() / "a.plugin.toml").string(), (ours.path() / "a.plugin.toml").string()})
    EXPECT_NE(found.clashes[0].text.find(file), std::string::npos) << found.clashes[0].text;
  EXPECT_NE(found.clashes[1].text.find(
                "the objective \"flow_matching\" of " + (theirs.path() / "flow_matching.plugin.toml").string() +
                " has the name of the program's own, " + (ours.path() / "flow_matching.plugin.toml").string()),
            std::string::npos)
      << found.clashes[1].text;
  EXPECT_THROW(schemas(found), PluginError);
  EXPECT_THROW(require_unambiguous(found, "memory", "a"), PluginError);
  EXPECT_NO_THROW(require_unambiguous(found, "memory", "b"));
  EXPECT_THROW(Loader({{theirs.path(), "--plugin-dir"}, {ours.path(), "installed"}}).require("memory", "a"),
               PluginError);
}

/// Named twice, a folder holds its plugins once; two plugins of others: the first folder counts.
TEST(Search, OneFolderUnderTwoNamesIsNoClash) {
  Folder folder, other;
  folder.add_manifest("a");
  other.add_manifest("a");
  EXPECT_TRUE(find_manifests({{folder.path(), "--plugin-dir"}, {folder.path(), "build tree"}}).clashes.empty());
  EXPECT_TRUE(find_manifests({{folder.path(), "--plugin-dir"}, {other.path(), "TRAINER_PLUGIN_PATH"}}).clashes.empty());
}

TEST(Search, ABadManifestHidesNoOtherAndDoesNotCount) {
  Folder first, second;
  first.add_manifest("a", {{"api", "= broken"}});
  second.add_manifest("a", {{"summary", "\"theirs\""}});
  const Found found = find_manifests({{first.path(), "1"}, {second.path(), "2"}});
  ASSERT_EQ(found.manifests.size(), 1U);
  EXPECT_EQ(found.manifests[0].schema.summary, "theirs");
  ASSERT_EQ(found.problems.size(), 1U);
  EXPECT_EQ(schemas(found).size(), 1U);
}

TEST(Search, MissingFoldersAndOtherFilesAreSkipped) {
  Folder folder;
  folder.add_file("x.toml", "not a manifest");
  folder.add_file("x.plugin.toml.bak", "nor this");
  const Found found = find_manifests({{folder.path(), "1"}, {folder.path() / "none", "2"}});
  EXPECT_TRUE(found.manifests.empty());
  EXPECT_TRUE(found.problems.empty());
}

TEST(Search, NotFoundSaysWhereItLookedAndTheNearestName) {
  Folder folder;
  folder.add_manifest("full_checkpointing");
  folder.add_manifest("checkpointing_model", {{"kind", "\"model\""}});
  folder.add_manifest("broken", {{"torch", ""}});
  const std::filesystem::path none = folder.path() / "none";
  Loader loader({{folder.path(), "TRAINER_PLUGIN_PATH"}, {none, "installed"}});
  const Refusal refusal = refusal_of([&] { loader.require("memory", "full_checkpoint"); });
  EXPECT_EQ(refusal.phase, "find");
  EXPECT_EQ(
      refusal.message,
      "plugin \"full_checkpoint\", find: no memory of this name (did you mean \"full_checkpointing\"?); searched:\n  " +
          folder.path().string() + " (TRAINER_PLUGIN_PATH)\n  " + none.string() +
          " (installed)\n  not readable: plugin \"" + (folder.path() / "broken.plugin.toml").string() +
          "\", manifest: key \"torch\" is missing or no string");
  expect_refusal(refusal_of([&] { loader.require("placement", "full_checkpointing"); }), "find",
                 "no placement of this name; searched:");
  EXPECT_TRUE(loader.registry().names().empty());
}

TEST(Search, TheRegistryComesFirst) {
  Folder folder;
  folder.add_manifest("twice");
  Loader loader = folder.loader();
  loader.registry().memory.emplace("twice",
                                   MemoryComponent{"twice", [](const Options&) -> std::unique_ptr<MemoryStrategy> {
                                                     return std::make_unique<MemoryStrategy>();
                                                   }});
  loader.require("memory", "twice");  // its library does not even exist
  EXPECT_EQ(loader.registry().names(), std::vector<std::string>{"memory twice"});
}

}  // namespace
}  // namespace trainer::plugin
