#include <data/names.hpp>

#include <base/utf8.hpp>
#include <text/utf8.hpp>

#include <algorithm>
#include <system_error>

namespace trainer::data {

namespace fs = std::filesystem;

std::string composed(std::string_view text) {
  if (!is_utf8(text)) return std::string(text);
  return text::normalise(text, text::NormalForm::nfc);
}

fs::path SpellingFinder::on_disk(const fs::path& path) {
  std::error_code error;
  const std::string& bytes = path.native();
  const bool ascii = std::none_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<signed char>(c) < 0; });
  if (ascii || fs::exists(fs::symlink_status(path, error))) return path;
  const fs::path folder = path.has_parent_path() ? on_disk(path.parent_path()) : fs::path(".");
  const auto [names, fresh] = folders_.try_emplace(folder);
  if (fresh) {
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      const auto [same, first] = names->second.try_emplace(composed(name), name);
      if (!first) same->second.clear();
    }
  }
  const auto found = names->second.find(composed(path.filename().string()));
  return found == names->second.end() || found->second.empty() ? path : folder / found->second;
}

}  // namespace trainer::data
