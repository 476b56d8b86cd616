/// @file Manifests: what a right one says, and each mistake with its place. (Option schemas: tests/unit/recipe.)
#include <trainer/sdk/fingerprint.hpp>

#include "folder.hpp"

namespace trainer::plugin {
namespace {

TEST(Manifest, IsReadWhole) {
  Folder folder;
  const Manifest manifest = read_manifest(folder.add_manifest(
      "x", {{"plugin", "\"several\""},
            {"option", "[[option]]\nkey = \"rank\"\ntype = \"integer\"\ndefault = 4\nmin = 1\nhelp = \"Rank.\"\n"}}));
  EXPECT_EQ(manifest.schema.name, "x");
  EXPECT_EQ(manifest.schema.kind, "memory");
  EXPECT_EQ(manifest.schema.summary, "for a test");
  ASSERT_EQ(manifest.schema.options.size(), 1U);
  EXPECT_EQ(manifest.schema.options[0].key, "rank");
  EXPECT_EQ(manifest.plugin, "several");
  EXPECT_EQ(manifest.version, "0.1.0");
  EXPECT_EQ(manifest.api, "0.1");
  EXPECT_EQ(manifest.torch, TORCH_VERSION);
  EXPECT_EQ(manifest.fingerprint, TRAINER_SDK_FINGERPRINT);
  EXPECT_EQ(manifest.library, folder.path() / "x.so");
  EXPECT_EQ(manifest.file, folder.path() / "x.plugin.toml");
  EXPECT_EQ(read_manifest(folder.add_manifest("y")).plugin, "y") << "the component's name unless given";
}

TEST(Manifest, MistakesNameFileAndPlace) {
  const std::string option = "[[option]]\nkey = \"rank\"\n";
  const struct {
    Keys changes;
    const char* text;
  } mistakes[] = {
      {{{"api", "= 3"}}, "line 1: "},
      {{{"manifest", ""}}, "\"manifest = 1\" is missing: not a manifest this program reads"},
      {{{"manifest", "2"}}, "\"manifest = 1\" is missing: not a manifest this program reads"},
      {{{"version", ""}}, "key \"version\" is missing or no string"},
      {{{"api", ""}}, "key \"api\" is missing or no string"},
      {{{"torch", "2.11"}}, "key \"torch\" is missing or no string"},
      {{{"fingerprint", ""}}, "key \"fingerprint\" is missing or no string"},
      {{{"library", ""}}, "key \"library\" is missing or no string"},
      {{{"library", "\"sub/x.so\""}}, "\"library\" must be a file name beside the manifest"},
      {{{"library", "\"../x.so\""}}, "\"library\" must be a file name beside the manifest"},
      {{{"library", "\"/usr/lib/x.so\""}}, "\"library\" must be a file name beside the manifest"},
      {{{"library", "\"\""}}, "\"library\" must be a file name beside the manifest"},
      {{{"library", "\"..\""}}, "\"library\" must be a file name beside the manifest"},
      {{{"cuda_capability", "\"8.9\""}}, "\"cuda_capability\" must be a number such as 8.9"},
      {{{"cuda_capability", "-1"}}, "\"cuda_capability\" must be a number such as 8.9"},
      {{{"name", ""}}, "missing key \"name\""},
      {{{"kind", "\"memroy\""}}, "unknown component kind \"memroy\" (did you mean \"memory\"?)"},
      {{{"option", option + "type = \"integer\"\nhelp = \"h\"\n"}},
       "x.plugin.toml:10:1: option \"rank\": needs default, default_text, same_as or required"},
      {{{"option", option + "type = \"integr\"\ndefault = 1\nhelp = \"h\"\n"}},
       "x.plugin.toml:12:8: type: unknown value type \"integr\" (did you mean \"integer\""},
      {{{"option", option + "type = \"integer\"\ndefault = 1\nmin = 2\nhelp = \"h\"\n"}},
       "x.plugin.toml:13:11: default of \"rank\": 1 is out of range, expected at least 2"},
      {{{"option", option + "type = \"integer\"\ndefault = 1\nhelp = \"h\"\n" + option +
                       "type = \"integer\"\ndefault = 1\nhelp = \"h\"\n"}},
       "x.plugin.toml:16:7: option \"rank\": declared twice"},
  };
  for (const auto& mistake : mistakes) {
    Folder folder;
    const std::filesystem::path file = folder.add_manifest("x", mistake.changes);
    const Refusal refusal = refusal_of([&] { read_manifest(file); });
    expect_refusal(refusal, "manifest", mistake.text);
    expect_refusal(refusal, "manifest", file.string());
    // For a run it is one of the things that were found wrong on the way.
    Loader loader = folder.loader();
    ASSERT_EQ(loader.found().problems.size(), 1U);
    EXPECT_NE(loader.found().problems[0].find(mistake.text), std::string::npos);
    expect_refusal(refusal_of([&] { loader.require("memory", "x"); }), "find", mistake.text);
  }
}

TEST(Manifest, AbsentHugeOrNoFile) {
  Folder folder;
  const auto refusal = [&](const std::string& name) {
    return refusal_of([&] { read_manifest(folder.path() / name); });
  };
  expect_refusal(refusal("none.plugin.toml"), "manifest", "No such file or directory");
  folder.add_file("huge.plugin.toml", std::string((1 << 20) + 1, '#'));
  expect_refusal(refusal("huge.plugin.toml"), "manifest", "is larger than 1048576 bytes");
  std::filesystem::create_directory(folder.path() / "folder.plugin.toml");
  expect_refusal(refusal("folder.plugin.toml"), "manifest", "is a folder");
  try {
    read_manifest(folder.path() / "none.plugin.toml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::not_found) << "the exit code of the cause";
  }
}

}  // namespace
}  // namespace trainer::plugin
