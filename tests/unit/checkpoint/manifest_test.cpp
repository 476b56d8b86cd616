/// @file The manifest as text: round trip, and nothing but its own output is accepted.
#include <base/hash.hpp>
#include <checkpoint/manifest.hpp>
#include <trainer/sdk/error.hpp>

#include "fixture.hpp"

namespace trainer::checkpoint {
namespace {

Manifest example() {
  Manifest manifest;
  manifest.step = 250;
  manifest.run_id = "00ff";
  manifest.files = {{"rank-00000.safetensors", 1234, std::string(32, 'a')}, {"state.json", 7, std::string(32, '0')}};
  manifest.fingerprints = {{"torch", "2.11.0"}, {"device", "\"quoted\" \\ \n"}};
  return manifest;
}

/// `body` with a hash line that fits.
std::string hashed(const std::string& body) { return body + "xxh128 " + xxh128(body) + "\n"; }

void expect_refused(const std::string& text, const std::string& why) {
  try {
    (void)parse_manifest(text, "M");
    FAIL() << "accepted: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
    EXPECT_EQ(error.code(), "CKPT_MANIFEST");
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with("M: damaged checkpoint manifest: ")) << error.what();
  }
}

TEST(Manifest, GoesRound) {
  const Manifest manifest = parse_manifest(manifest_text(example()), "M");
  EXPECT_EQ(manifest.step, 250);
  EXPECT_EQ(manifest.run_id, "00ff");
  ASSERT_EQ(manifest.files.size(), 2U);
  EXPECT_EQ(manifest.files[0].name, "rank-00000.safetensors");
  EXPECT_EQ(manifest.files[0].bytes, 1234U);
  EXPECT_EQ(manifest.files[0].xxh128, std::string(32, 'a'));
  EXPECT_EQ(manifest.fingerprints, example().fingerprints);
  EXPECT_EQ(manifest_text(manifest), manifest_text(example()));
}

TEST(Manifest, EveryFlippedBitIsRefused) {
  const std::string text = manifest_text(example());
  for (std::size_t i = 0; i < text.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_THROW((void)parse_manifest(damaged, "M"), Error) << "byte " << i << " bit " << bit;
    }
}

TEST(Manifest, EveryCutIsRefused) {
  const std::string text = manifest_text(example());
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_THROW((void)parse_manifest(text.substr(0, length), "M"), Error) << length;
  EXPECT_THROW((void)parse_manifest(text + "\n", "M"), Error);
  EXPECT_THROW((void)parse_manifest(text + text, "M"), Error);
}

TEST(Manifest, ARefusalSaysWhatIsDamaged) {
  const std::string text = manifest_text(example());
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string copy = text;
    return copy.replace(text.rfind(from), from.size(), to);
  };
  expect_refused(changed("\n", "x"), "it is cut off");
  expect_refused(changed("xxh128 ", "xxh129 "), "its last line is no hash");
  expect_refused(changed("\"step\": 250", "\"step\": 251"), "its content does not match its hash");
}

TEST(Manifest, ForeignContentUnderARightHashIsRefused) {
  const std::string text = manifest_text(example());
  const std::string body = text.substr(0, text.rfind("xxh128 "));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string copy = body;
    const std::size_t at = copy.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return hashed(copy.replace(at, from.size(), to));
  };
  expect_refused(hashed(""), "it is cut off");
  expect_refused(hashed("not json at all\n"), "parse error");
  expect_refused(hashed("[]\n"), "");
  expect_refused(changed("\"version\": 1", "\"version\": 2"), "written in format version 2, this program reads 1");
  expect_refused(changed("\"step\": 250", "\"step\": -1"), "negative step");
  expect_refused(changed("\"step\": 250", "\"step\": 250.5"), "\"step\" is 250.5, no whole number");
  expect_refused(changed("\"step\": 250", "\"step\": 1e30"), "\"step\" is 1e+30, no whole number");
  expect_refused(changed("\"bytes\": 7", "\"bytes\": -7"), "\"bytes\" is -7, no whole number");
  expect_refused(changed("\"bytes\": 7", "\"bytes\": 18446744073709551615"), "no whole number");
  expect_refused(changed("\"step\": 250", "\"step\": 250, \"extra\": 1"), "it holds more than this program writes");
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  expect_refused(changed("\"step\": 250", "\"step\": " + deep), "it is nested deeper than this program writes");
  expect_refused(changed("\"step\": 250", "\"step\": 250, \"x\": " + deep), "it is nested deeper");
  expect_refused(changed("state.json", "../state.json"), "bad file name \"../state.json\"");
  expect_refused(changed("state.json", "rank-00000.safetensors"), "bad file name \"rank-00000.safetensors\"");
  expect_refused(changed("state.json", ".hidden"), "bad file name \".hidden\"");
  expect_refused(changed("\"run_id\": \"00ff\"", "\"run_id\": 3"), "type must be string");
}

TEST(Manifest, FilesAreCheckedOneByOne) {
  const Folder folder;
  const std::string content = "0123456789";
  write_text(folder.path() / "one", content);
  Manifest manifest{1, "id", {{"one", content.size(), xxh128(content)}}, {}};
  verify_files(folder.path(), manifest);
  const auto code = [&] {
    try {
      verify_files(folder.path(), manifest);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
      return error.code();
    }
    return std::string("none");
  };
  write_text(folder.path() / "one", "0123456780");
  EXPECT_EQ(code(), "CKPT_HASH");
  write_text(folder.path() / "one", "012345678");
  EXPECT_EQ(code(), "CKPT_SIZE");
  fs::remove(folder.path() / "one");
  EXPECT_EQ(code(), "CKPT_MISSING");
}

}  // namespace
}  // namespace trainer::checkpoint
