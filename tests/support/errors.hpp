/// @file What a test expects to be thrown.
#pragma once

#include <trainer/sdk/error.hpp>

#include <string>

namespace trainer::test {

/// The message of the Error that `work` throws, with every `cut` removed; "" when it throws none.
template <typename Work>
std::string message_of(const Work& work, const std::string& cut = {}) {
  try {
    work();
  } catch (const Error& error) {
    std::string text = error.what();
    for (std::size_t at; !cut.empty() && (at = text.find(cut)) != std::string::npos;) text.erase(at, cut.size());
    return text;
  }
  return {};
}

}  // namespace trainer::test
