#include <recipe/problems.hpp>

#include <algorithm>
#include <tuple>

namespace trainer::recipe {

bool Problems::has(const SourcePosition& position) const {
  return std::any_of(found_.begin(), found_.end(), [&](const auto& found) {
    const SourcePosition& p = found.first;
    return std::tie(p.file, p.line, p.column) == std::tie(position.file, position.line, position.column);
  });
}

void Problems::throw_if_any(ExitCode code) {
  constexpr std::size_t kShown = 50;
  if (found_.empty()) return;
  std::stable_sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) {
    const auto order = [](const SourcePosition& p) { return std::tuple(p.line == 0, p.file, p.line, p.column); };
    return order(a.first) < order(b.first);
  });
  std::string text;
  for (std::size_t i = 0; i < found_.size() && i < kShown; ++i) {
    text += (i == 0 ? "" : "\n") + found_[i].first.text() + ": " + found_[i].second;
  }
  if (found_.size() > kShown) text += "\nand " + std::to_string(found_.size() - kShown) + " more mistakes";
  throw Error(code, text);
}

}  // namespace trainer::recipe
