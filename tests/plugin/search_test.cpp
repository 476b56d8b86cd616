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
  register_builtin(loader.registry(), [](Registrar& registrar) {
    registrar.add(MemoryComponent{
        "twice", [](const Options&) -> std::unique_ptr<MemoryStrategy> { return std::make_unique<MemoryStrategy>(); }});
  });
  loader.require("memory", "twice");  // its library does not even exist
  EXPECT_EQ(loader.registry().names(), std::vector<std::string>{"memory twice"});
}

}  // namespace
}  // namespace trainer::plugin
