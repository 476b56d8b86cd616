/// @file The mistakes of one adapter file, collected for one message.
#pragma once

#include <trainer/sdk/error.hpp>

#include <cstddef>
#include <string>

namespace trainer::adapter {

/// Mistakes, one a line. Of a file that is something else altogether the first ones are enough.
class FileProblems {
 public:
  void add(const std::string& text) {
    if (++count_ <= kShown) text_ += "\n  " + text;
  }
  void throw_if_any(const std::string& what, const char* code) const {
    if (count_ == 0) return;
    const std::string more = count_ > kShown ? "\n  and " + std::to_string(count_ - kShown) + " more" : "";
    throw Error(ExitCode::bad_input, what + text_ + more, code);
  }

 private:
  static constexpr std::size_t kShown = 20;
  std::size_t count_ = 0;
  std::string text_;
};

}  // namespace trainer::adapter
