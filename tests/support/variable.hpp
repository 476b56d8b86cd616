/// @file An environment variable for as long as a test needs it, for processes that the test starts.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace trainer::test {

/// Set while this lives, as it was afterwards.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    ::setenv(name, value, 1);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace trainer::test
