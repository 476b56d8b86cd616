#include <toml++/toml.h>

#include <cli/layout.hpp>
#include <trainer/sdk/error.hpp>

#include <cstdlib>
#include <sstream>

namespace trainer::cli {

namespace fs = std::filesystem;

Layout find_layout(const std::vector<std::string>& extra) {
  Layout layout;
  for (const std::string& folder : extra) {
    if (!fs::is_directory(folder))
      throw Error(ExitCode::not_found, "--plugin-dir " + folder + ": there is no such folder");
    layout.plugins.push_back({fs::absolute(folder), "--plugin-dir"});
  }
  if (const char* more = std::getenv("TRAINER_PLUGIN_PATH")) {
    std::istringstream folders(more);
    for (std::string folder; std::getline(folders, folder, ':');)
      if (!folder.empty()) layout.plugins.push_back({fs::absolute(folder), "TRAINER_PLUGIN_PATH"});
  }
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path();
  if (const fs::path file = program / "trainer.layout.toml"; fs::exists(file)) {
    const toml::table table = toml::parse_file(file.string());
    layout.engine = table["engine"].value_or(std::string());
    layout.images = table["images"].value_or(std::string());
    layout.nccl = table["nccl"].value_or(std::string());
    for (const auto& folder : *table["plugins"].as_array())
      layout.plugins.push_back({folder.value_or(std::string()), "build tree"});
    return layout;
  }
  const fs::path libraries = program.parent_path() / TRAINER_LIBDIR;
  layout.engine = libraries / "libtrainer.so";
  layout.images = libraries / "trainer/libtrainer_images.so";
  layout.nccl = libraries / "trainer/libtrainer_nccl.so";
  layout.plugins.push_back({libraries / "trainer/plugins", "installed"});
  return layout;
}

}  // namespace trainer::cli
