// Bytes as a picture. libvips and the decoders under it are not instrumented; the wrapper around them is.
#include <data/images_api.h>

#include <array>
#include <string>
#include <vector>

#include "target.hpp"

extern "C" {
int trainer_images_header(const void*, size_t, const TrainerImageLimits*, TrainerImageHeader*, char*);
int trainer_images_decode(const void*, size_t, const TrainerImageLimits*, int64_t, int64_t, uint8_t*, char*);
}

namespace {

using namespace trainer;

// Small, so that an input takes milliseconds and the limits are met often.
constexpr TrainerImageLimits kLimits{1 << 16, 1024, 1 << 19};

std::string reason(int result, const std::array<char, TRAINER_IMAGES_MESSAGE_BYTES>& message) {
  const std::string text(message.data());  // ends inside the buffer
  fuzz::require(result == 0 || !text.empty(), "a refusal says why");
  return text;
}

void parse(std::string_view bytes) {
  std::array<char, TRAINER_IMAGES_MESSAGE_BYTES> message{};
  TrainerImageHeader header{};
  const int opened = trainer_images_header(bytes.data(), bytes.size(), &kLimits, &header, message.data());
  (void)reason(opened, message);
  std::vector<uint8_t> first(3 * 9 * 7), second(first.size());
  const int decoded = trainer_images_decode(bytes.data(), bytes.size(), &kLimits, 9, 7, first.data(), message.data());
  (void)reason(decoded, message);
  if (opened != 0) return fuzz::require(decoded != 0, "what has no header is not decoded");
  fuzz::require(header.width > 0 && header.height > 0 && header.width <= kLimits.max_side &&
                    header.height <= kLimits.max_side && header.width * header.height <= kLimits.max_pixels,
                "the limits hold");
  fuzz::require(header.orientation >= 1 && header.orientation <= 8, "an orientation is one of eight");
  if (decoded != 0) return;
  const int again = trainer_images_decode(bytes.data(), bytes.size(), &kLimits, 9, 7, second.data(), message.data());
  fuzz::require(again == 0 && first == second, "decoding twice gives the same");
}

}  // namespace
TRAINER_FUZZ_TARGET("image", parse);
