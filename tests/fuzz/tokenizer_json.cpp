// Bytes as tokenizer.json; what follows a NUL, if anything, is the text to encode.
#include <text/tokenizer.hpp>

#include <string>
#include <vector>

#include "target.hpp"

namespace {

using namespace trainer;

void parse(std::string_view bytes) {
  const std::size_t end = std::min(bytes.find('\0'), bytes.size());
  const text::Tokenizer tokenizer = text::Tokenizer::parse(bytes.substr(0, end), "fuzz");
  const std::string_view rest = bytes.substr(std::min(end + 1, bytes.size()));
  for (const bool special : {false, true}) {
    const std::vector<int64_t> ids =
        tokenizer.encode(rest.empty() ? "A cat's 12 ca\u00f1ons <s>\u00a0\n\n x" : rest, special);
    for (const int64_t id : ids) fuzz::require(id >= 0 && id <= tokenizer.max_id(), "an id is of the vocabulary");
    const std::string text = tokenizer.decode(ids);
    (void)tokenizer.encode(text, false);  // decoded text is UTF-8, so it can be encoded
  }
}

}  // namespace
TRAINER_FUZZ_TARGET("tokenizer_json", parse);
