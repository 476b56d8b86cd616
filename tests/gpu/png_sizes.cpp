/// @file An image module without libvips (framework/data/images_api.h), carried to machines that may lack it: it tells
/// the sizes of PNG files, by their first chunk, and decodes nothing. What the suite trains on there comes from a
/// cache.
#include <data/images_api.h>

#include <cstdio>
#include <cstring>

namespace {

constexpr std::size_t kHead = 29;  ///< signature, and the chunk IHDR up to its last field but CRC
constexpr unsigned char kSignature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n', 0, 0, 0, 13, 'I', 'H', 'D', 'R'};

int refuse(char* message, const char* reason) {
  std::snprintf(message, TRAINER_IMAGES_MESSAGE_BYTES, "%s", reason);
  return 1;
}

int64_t number_at(const unsigned char* bytes) {
  return (int64_t{bytes[0]} << 24) | (bytes[1] << 16) | (bytes[2] << 8) | bytes[3];
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int trainer_images_version() { return TRAINER_IMAGES_VERSION; }

__attribute__((visibility("default"))) int trainer_images_header(const void* data, size_t size,
                                                                 const TrainerImageLimits*, TrainerImageHeader* header,
                                                                 char* message) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  if (size < kHead || std::memcmp(bytes, kSignature, sizeof kSignature) != 0)
    return refuse(message, "is no PNG; without libvips nothing else is read");
  const int colours = bytes[25];  // 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGB and alpha
  *header = {"png",
             number_at(bytes + 16),
             number_at(bytes + 20),
             colours % 4 == 0 ? 1 : 3,
             bytes[24] == 16 ? 16 : 8,
             colours >= 4 ? 1 : 0,
             1};
  if (header->has_alpha != 0) ++header->bands;
  return 0;
}

__attribute__((visibility("default"))) int trainer_images_decode(const void*, size_t, const TrainerImageLimits*,
                                                                 int64_t, int64_t, uint8_t*, char* message) {
  return refuse(message, "cannot be decoded without libvips; the cache that was carried does not hold it");
}

__attribute__((visibility("default"))) int trainer_images_encode_png(const uint8_t*, int64_t, int64_t, void**, size_t*,
                                                                     char* message) {
  return refuse(message, "pictures cannot be written without libvips");
}

__attribute__((visibility("default"))) void trainer_images_free(void*) {}

}  // extern "C"
