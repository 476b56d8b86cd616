/// @file See folder.hpp.
#include "folder.hpp"

#include <trainer/sdk/fingerprint.hpp>

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace trainer::plugin {

namespace fs = std::filesystem;

Folder::Folder() {
  std::string name = ::testing::TempDir() + "trainer_plugins_XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
  path_ = name;
}
Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path Folder::add(const std::string& name, const Keys& changes) {
  fs::copy_file(cases() / ("case_" + name + ".so"), path_ / (name + ".so"));
  return add_manifest(name, changes);
}

fs::path Folder::add_manifest(const std::string& name, const Keys& changes) {
  Keys keys = {{"manifest", "1"},
               {"name", '"' + name + '"'},
               {"kind", "\"memory\""},
               {"version", "\"0.1.0\""},
               {"api", "\"0.1\""},
               {"torch", std::string("\"") + TORCH_VERSION + '"'},
               {"fingerprint", std::string("\"") + TRAINER_SDK_FINGERPRINT + '"'},
               {"library", '"' + name + ".so\""},
               {"summary", "\"for a test\""}};
  for (const auto& [key, value] : changes) keys[key] = value;
  const std::string option = keys["option"];
  keys.erase("option");
  std::string text;
  for (const auto& [key, value] : keys)
    if (!value.empty()) text += key + " = " + value + "\n";
  return add_file(name + ".plugin.toml", text + option);
}

fs::path Folder::add_file(const std::string& name, const std::string& content) {
  std::ofstream(path_ / name, std::ios::binary) << content;
  return path_ / name;
}

fs::path cases() { return std::getenv("TRAINER_TEST_CASES"); }

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool is_open(const std::string& part) { return read("/proc/self/maps").find(part) != std::string::npos; }

Refusal refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const PluginError& error) {
    return {error.phase(), error.what()};
  }
  return {};
}

void expect_refusal(const Refusal& refusal, const std::string& phase, const std::string& text) {
  EXPECT_EQ(refusal.phase, phase);
  EXPECT_NE(refusal.message.find(text), std::string::npos) << refusal.message;
}

}  // namespace trainer::plugin
