/// @file Every fault of a library: refused in its phase, with its words, and nothing of it in the registry.
#include <trainer/sdk/fingerprint.hpp>

#include "folder.hpp"

namespace trainer::plugin {
namespace {

struct Fault {
  const char *name, *phase, *text;
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class Library : public ::testing::TestWithParam<Fault> {};

TEST_P(Library, IsRefused) {
  const Fault& fault = GetParam();
  Folder folder;
  folder.add("twins", {{"name", "\"first_twin\""}, {"plugin", "\"twins\""}});
  folder.add(fault.name);
  Loader loader = folder.loader();
  ASSERT_TRUE(loader.found().problems.empty()) << loader.found().problems.front();
  loader.require("memory", "first_twin");
  const std::vector<std::string> before = loader.registry().names();
  // Twice: a refused plugin stays refused, and asking again is harmless.
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Refusal refusal = refusal_of([&] { loader.require("memory", fault.name); });
    expect_refusal(refusal, fault.phase, fault.text);
    EXPECT_EQ(refusal.message.rfind("plugin \"" + std::string(fault.name) + "\", " + fault.phase + ": ", 0), 0U)
        << refusal.message;
    EXPECT_EQ(loader.registry().names(), before);
  }
  loader.require("memory", "first_twin");
}

INSTANTIATE_TEST_SUITE_P(
    Faults, Library,
    ::testing::Values(
        Fault{"magic", "handshake", "is not one of this program"},
        Fault{"size", "handshake", "is not one of this program"},
        Fault{"major", "handshake", "the library is for SDK API 1.1, this program has 0.1"},
        Fault{"minor", "handshake", "the library is for SDK API 0.2, this program has 0.1"},
        Fault{"renamed", "handshake", "the library calls itself \"another_name\", the manifest says \"renamed\""},
        Fault{"no_name", "handshake", "has empty fields"},
        Fault{"no_symbol", "handshake", "does not export trainer_plugin; is it a plugin?"},
        Fault{"fingerprint", "fingerprint", "\n  cxx11abi: plugin 0, program 1"},
        Fault{"throws", "init", "no licence for Tuesdays"},
        Fault{"throws_int", "init", "an exception that is no std::exception"},
        Fault{"taken", "init", "the memory strategy name \"first_twin\" is taken"},
        Fault{"no_factory", "init", "registered a memory strategy without a name or a factory"},
        Fault{"nothing", "init", "the manifest promises the memory \"nothing\", the library registered nothing"},
        Fault{"other", "init",
              "the manifest promises the memory \"other\", the library registered memory something_else"},
        Fault{"undefined", "open", "undefined symbol: _Z15defined_nowherev"}),
    [](const auto& info) { return std::string(info.param.name); });

/// A message for the user with an exit code of its own keeps both.
TEST(Init, ErrorsForTheUserPass) {
  Folder folder;
  folder.add("throws_error");
  Loader loader = folder.loader();
  try {
    loader.require("memory", "throws_error");
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::unavailable);
    EXPECT_STREQ(error.what(), "the licence server does not answer");
  }
  EXPECT_TRUE(loader.registry().names().empty());
}

TEST(Fingerprint, SaysEachFieldThatDiffers) {
  Folder folder;
  folder.add("fingerprint");
  Loader loader = folder.loader();
  const Refusal refusal = refusal_of([&] { loader.require("memory", "fingerprint"); });
  expect_refusal(refusal, "fingerprint", "built for another program:\n");
  expect_refusal(refusal, "fingerprint", "\n  sdk: plugin 0.0.9, program " TRAINER_SDK_VERSION);
  expect_refusal(refusal, "fingerprint", "\n  compiler: plugin (not stated), program ");
  EXPECT_EQ(refusal.message.find("\n  torch:"), std::string::npos) << "equal fields are left out";
  EXPECT_TRUE(refusal.message.ends_with("\n  rebuild the plugin with this program's SDK"));
}

TEST(File, NotElfTruncatedEmptyAbsentOrAFolder) {
  Folder folder;
  const std::string whole = read(cases() / "case_twins.so");
  folder.add_manifest("not_elf"), folder.add_file("not_elf.so", "#!/bin/sh\necho hello\n" + std::string(4096, 'x'));
  folder.add_manifest("empty"), folder.add_file("empty.so", "");
  folder.add_manifest("short"), folder.add_file("short.so", whole.substr(0, 100));
  folder.add_manifest("part"), folder.add_file("part.so", whole.substr(0, whole.size() / 4));
  folder.add_manifest("absent");
  folder.add_manifest("folder"), std::filesystem::create_directory(folder.path() / "folder.so");
  Loader loader = folder.loader();
  const auto refusal = [&](const char* name) { return refusal_of([&] { loader.require("memory", name); }); };
  expect_refusal(refusal("not_elf"), "open", "is no shared library");
  expect_refusal(refusal("empty"), "open", "is no shared library");
  expect_refusal(refusal("short"), "open", "is cut short");
  expect_refusal(refusal("part"), "open", "part.so is cut short: ");
  expect_refusal(refusal("absent"), "open", "absent.so: cannot open shared object file: No such file or directory");
  expect_refusal(refusal("folder"), "open", "folder.so");
  EXPECT_TRUE(loader.registry().names().empty());
}

/// Wherever a copy of a plugin stopped, it is refused and the process lives.
TEST(File, CutAnywhereIsRefused) {
  Folder folder;
  const std::string whole = read(cases() / "case_magic.so");
  Loader loader({});
  for (int part = 0; part < 16; ++part) {
    const std::string name = "cut" + std::to_string(part);
    const Manifest manifest = read_manifest(folder.add_manifest(name));
    folder.add_file(name + ".so", whole.substr(0, whole.size() * static_cast<std::size_t>(part) / 16));
    // A library cut behind its last loaded byte is whole to the dynamic loader, and then refused for its magic.
    const Refusal refusal = refusal_of([&] { loader.load(manifest); });
    EXPECT_TRUE(refusal.phase == "open" || refusal.phase == "handshake") << part << refusal.message;
  }
}

#ifdef __SANITIZE_ADDRESS__
#define PROGRAM_ASAN "1"
#define OTHER_ASAN "0"
#else
#define PROGRAM_ASAN "0"
#define OTHER_ASAN "1"
#endif

TEST(Gate, RefusesBeforeTheLibraryIsOpened) {
  const struct {
    const char *name, *key, *value, *text;
  } gates[] = {
      {"torch", "torch", "\"2.10.0\"", "built for LibTorch 2.10.0, this program has 2.11.0"},
      {"api", "api", "\"0.2\"", "built for SDK API 0.2, this program has 0.1"},
      {"headers", "fingerprint", "\"sdk=0.1.0;headers=0000000000000000;asan=0\"",
       "\n  headers: plugin 0000000000000000, program " TRAINER_SDK_HEADERS},
      {"print", "fingerprint", "\"sdk=0.1.0;asan=" OTHER_ASAN "\"",
       "\n  asan: plugin " OTHER_ASAN ", program " PROGRAM_ASAN},
  };
  for (const auto& gate : gates) {
    Folder folder;
    // The library is right: opened, it would load.
    folder.add("twins", {{gate.key, gate.value}, {"name", "\"first_twin\""}, {"plugin", "\"twins\""}});
    Loader loader = folder.loader();
    const Refusal refusal = refusal_of([&] { loader.require("memory", "first_twin"); });
    expect_refusal(refusal, "manifest", gate.text);
    EXPECT_FALSE(is_open(folder.path().string())) << gate.name;
    EXPECT_TRUE(loader.registry().names().empty());
  }
}

TEST(TwoComponents, ShareOneLibraryAndOneInit) {
  Folder folder;
  folder.add("twins", {{"name", "\"first_twin\""}, {"plugin", "\"twins\""}});
  folder.add_manifest("second_twin", {{"plugin", "\"twins\""}, {"library", "\"twins.so\""}});
  folder.add_manifest("third_twin", {{"plugin", "\"twins\""}, {"library", "\"twins.so\""}});
  Loader loader = folder.loader();
  loader.require("memory", "second_twin");
  const std::vector<std::string> both{"memory first_twin", "memory second_twin"};
  EXPECT_EQ(loader.registry().names(), both);
  EXPECT_TRUE(is_open(folder.path().string()));
  loader.require("memory", "first_twin");
  loader.require("memory", "second_twin");
  EXPECT_EQ(loader.registry().names(), both) << "a second init would find the names taken";
  expect_refusal(refusal_of([&] { loader.require("memory", "third_twin"); }), "init",
                 "the manifest promises the memory \"third_twin\", the library registered memory first_twin, memory "
                 "second_twin");
  EXPECT_EQ(loader.registry().names(), both);
  EXPECT_NE(loader.registry().memory.at("first_twin").create(Options()), nullptr);
}

TEST(Load, OneManifestForPluginsCheck) {
  Folder folder;
  const Manifest manifest = read_manifest(folder.add("twins", {{"name", "\"first_twin\""}, {"plugin", "\"twins\""}}));
  Loader loader({});
  const std::vector<std::string> offered{"memory first_twin", "memory second_twin"};
  EXPECT_EQ(loader.load(manifest), offered);
  EXPECT_EQ(loader.load(manifest), offered) << "again";
}

}  // namespace
}  // namespace trainer::plugin
