/// @file The plugins of this build: every manifest is right, every library loads and keeps its promise.
#include <support/plugins.hpp>

#include "folder.hpp"

namespace trainer::plugin {
namespace {

TEST(BuiltPlugins, AllLoadAndKeepTheirPromise) {
  const std::vector<SearchFolder> folders = testing::plugin_folders();
  Loader loader(folders);
  EXPECT_TRUE(loader.found().problems.empty()) << loader.found().problems.front();
  ASSERT_GE(loader.found().manifests.size(), folders.size()) << "each folder has one or more";
  for (const Manifest& manifest : loader.found().manifests) {
    loader.require(manifest.schema.kind, manifest.schema.name);
  }
  EXPECT_GE(loader.registry().names().size(), loader.found().manifests.size());
}

}  // namespace
}  // namespace trainer::plugin
