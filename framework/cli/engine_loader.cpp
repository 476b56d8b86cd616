#include <engine/engine.h>
#include <base/files.hpp>
#include <base/printable.hpp>
#include <base/utf8.hpp>
#include <cli/engine_loader.hpp>
#include <nlohmann/json.hpp>
#include <plugin/library.hpp>

#include <cstdlib>
#include <cstring>
#include <fstream>

namespace trainer::cli {
namespace {

namespace fs = std::filesystem;

plugin::SearchFolder place(fs::path root, std::string origin) { return {std::move(root), std::move(origin)}; }

std::vector<plugin::SearchFolder> places(const std::string& chosen) {
  if (!chosen.empty()) return {place(chosen, "--libtorch or TRAINER_LIBTORCH")};  // a choice is never replaced
  std::vector<plugin::SearchFolder> all{place(TRAINER_LIBTORCH, "set at build")};
  if (const fs::path cache = user_cache_folder(); !cache.empty())
    all.push_back(place(cache / "libtorch-" TRAINER_TORCH_VERSION, "per-user cache"));
  return all;
}

/// The folder with libtorch_cpu.so, under a LibTorch root or itself; empty if there is none, with the reason in `why`
/// when it could not be looked for.
fs::path library_folder(const fs::path& root, std::string& why) {
  for (const fs::path& folder : {root / "lib", root, root / "torch/lib"}) {
    std::error_code failed;
    if (fs::exists(folder / "libtorch_cpu.so", failed)) return fs::canonical(folder);
    if (failed && why.empty()) why = ": " + failed.message();
  }
  return {};
}

fs::path find_libtorch(const std::string& chosen) {
  std::string searched;
  for (const auto& [root, origin] : places(chosen)) {
    std::string why;
    if (const fs::path folder = library_folder(root, why); !folder.empty()) return folder;
    searched += "\n  " + root.string() + " (" + origin + ")" + why;
  }
  throw Error(ExitCode::unavailable, "LibTorch " TRAINER_TORCH_VERSION " was not found; searched:" + searched +
                                         "\n  install it with tools/setup, or name one with --libtorch or "
                                         "TRAINER_LIBTORCH");
}

/// The version a wheel (version.py) or a LibTorch archive (build-version) states beside its lib folder, or empty.
std::string stated_version(const fs::path& folder) {
  for (const auto& [file, before] : {std::pair{"version.py", "__version__ = '"}, std::pair{"build-version", ""}}) {
    std::ifstream text(folder.parent_path() / file);
    const std::size_t length = std::strlen(before);
    for (std::string line; std::getline(text, line);)
      if (line.starts_with(before)) return line.substr(length, line.find_first_of("+'", length) - length);
  }
  return {};
}

void require_version(const std::string& found, const fs::path& folder) {
  if (found != TRAINER_TORCH_VERSION)
    throw Error(ExitCode::unavailable,
                "LibTorch " TRAINER_TORCH_VERSION " is needed, " + folder.string() + " has " + found);
}

std::string version_text(uint64_t packed) {
  return std::to_string(packed >> 56) + "." + std::to_string(packed >> 48 & 255) + "." +
         std::to_string(packed >> 40 & 255);
}

/// Loads the two libraries by path. What is opened later and needs "libtorch_cpu.so" gets this copy, whatever its
/// RUNPATH says: the loader matches names of loaded libraries before it searches.
void load_libtorch(const fs::path& folder) {
  // Before loading: another version may fail to load for a reason that hides the cause (its CUDA libraries).
  if (const std::string stated = stated_version(folder); !stated.empty()) require_version(stated, folder);
  try {
    plugin::open(folder / "libc10.so", plugin::Scope::global);
    const void* cpu = plugin::open(folder / "libtorch_cpu.so", plugin::Scope::global);
    const auto version_of = plugin::find_function<uint64_t (*)()>(cpu, "aoti_torch_abi_version");
    require_version(version_of == nullptr ? "an older one" : version_text(version_of()), folder);
  } catch (const plugin::OpenError& error) {
    throw Error(ExitCode::unavailable, "LibTorch in " + folder.string() + " cannot be loaded: " + error.what());
  }
}

/// libgomp reads its environment when it is loaded. Its default spins for milliseconds, ruinous on a busy machine.
void limit_spinning() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/0);
}

/// The engine is asked in JSON, and what is asked is kept with the results.
void require_utf8(const nlohmann::json& value) {
  if (value.is_string() && !is_utf8(value.get_ref<const std::string&>()))
    throw Error(ExitCode::usage, "\"" + printable(value.get_ref<const std::string&>()) +
                                     "\" is not UTF-8: rename the file or folder, or name a link to it");
  if (value.is_structured())
    for (const nlohmann::json& item : value) require_utf8(item);
}

}  // namespace

int call_engine(const std::string& command, nlohmann::json request, const Layout& layout, const std::string& libtorch) {
  const fs::path folder = find_libtorch(libtorch);
  limit_spinning();
  load_libtorch(folder);
  const void* engine = nullptr;
  try {
    engine = plugin::open(layout.engine, plugin::Scope::global);
  } catch (const plugin::OpenError& error) {
    throw Error(ExitCode::unavailable, "the engine cannot be loaded: " + std::string(error.what()));
  }
  const auto call = plugin::find_function<trainer_engine_function>(engine, "trainer_engine_call");
  if (call == nullptr) throw Error(ExitCode::unavailable, layout.engine.string() + " is no engine");
  request["libtorch"] = folder.string();
  request["images"] = layout.images.string();
  request["nccl"] = layout.nccl.string();
  for (const auto& [path, origin] : layout.plugins)
    request["plugins"].push_back({{"folder", path.string()}, {"origin", origin}});
  require_utf8(request);
  return call(TRAINER_VERSION, command.c_str(), request.dump().c_str());
}

}  // namespace trainer::cli
