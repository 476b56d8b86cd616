/// @file The C interface of libtrainer_images.so, the module around libvips: only plain data crosses it, so that the
/// module may be built and opened apart. Used by image.cpp (host side) and images_module.cpp (libvips side).
///
/// Every function returns 0, or another number after writing a NUL-terminated reason (without the file's name) to
/// `message`. Nothing is kept between calls; calls may come from several threads.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define TRAINER_IMAGES_VERSION 1
#define TRAINER_IMAGES_MESSAGE_BYTES 512

extern "C" {

typedef struct {
  char format[16];         /* "jpeg", "png", "webp", "heif" (avif and heic) or "tiff" */
  int64_t width, height;   /* as shown: after the EXIF orientation */
  int32_t bands, bits;     /* as decoded: palettes count as colours */
  int32_t has_alpha;
  int32_t orientation;     /* EXIF 1..8 */
} TrainerImageHeader;

typedef struct {
  int64_t max_pixels, max_side, max_decoded_bytes;
} TrainerImageLimits;

/* int trainer_images_version(void) */
typedef int (*TrainerImagesVersion)(void);

/* int trainer_images_header(...): reads and checks the header; no pixel is decoded. */
typedef int (*TrainerImagesReadHeader)(const void* bytes, size_t size, const TrainerImageLimits* limits,
                                       TrainerImageHeader* header, char* message);

/* int trainer_images_decode(...): writes 3 * width * height bytes, RGB rows from the top, resized to cover and cropped
   at the centre. Every pixel is decoded: damage outside the crop is found, too. width = height = 0: decodes every pixel
   and throws them away, to check the file (rgb may be null). */
typedef int (*TrainerImagesDecode)(const void* bytes, size_t size, const TrainerImageLimits* limits, int64_t width,
                                   int64_t height, uint8_t* rgb, char* message);

/* int trainer_images_encode_png(...): *png is to be freed with trainer_images_free. */
typedef int (*TrainerImagesEncodePng)(const uint8_t* rgb, int64_t width, int64_t height, void** png, size_t* size,
                                      char* message);
typedef void (*TrainerImagesFree)(void* memory);

}  /* extern "C" */
