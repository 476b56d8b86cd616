/// @file The mistakes of a recipe, collected so that all of them are reported at once.
#pragma once

#include <recipe/recipe.hpp>

#include <trainer/sdk/error.hpp>

#include <string>
#include <utility>
#include <vector>

namespace trainer::recipe {

class Problems {
 public:
  void add(SourcePosition position, std::string message) {
    found_.emplace_back(std::move(position), std::move(message));
  }
  [[nodiscard]] std::size_t count() const { return found_.size(); }
  /// Whether there is a mistake at `position`: what depends on that value need not be judged, too.
  [[nodiscard]] bool has(const SourcePosition& position) const;
  /// Throws one Error with every mistake, a line each: files in line order, then the command line.
  void throw_if_any(ExitCode code);

 private:
  std::vector<std::pair<SourcePosition, std::string>> found_;
};

}  // namespace trainer::recipe
