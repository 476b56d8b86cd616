// Bytes as the content of a caption file.
#include <data/caption.hpp>
#include <base/utf8.hpp>

#include <string>

#include "target.hpp"

namespace {

using namespace trainer;

void parse(std::string_view bytes) {
  const std::string caption = data::clean_caption(bytes);
  fuzz::require(is_utf8(caption), "a caption is UTF-8");
  fuzz::require(caption.find('\0') == std::string::npos && caption.find('\r') == std::string::npos,
                "a caption has no control characters but tab and newline");
  fuzz::require(data::clean_caption(caption) == caption, "a clean caption stays as it is");
  const std::string triggered = data::with_trigger("sks", caption);
  fuzz::require(data::with_trigger("sks", triggered) == triggered, "a trigger is put in once");
}

}  // namespace
TRAINER_FUZZ_TARGET("captions", parse);
