/// @file Pictures in and out: header, decoding to 8-bit sRGB of an exact size, PNG. Used by the dataset scan, the cache
/// phase and the sample grids.
///
/// The work is done by libvips in a module of its own, libtrainer_images.so, opened when first needed: commands that
/// read no picture start without its 60 libraries. Read: jpeg, png, webp, avif, heic, tiff; 8 and 16 bit, palettes,
/// grey, CMYK. EXIF orientation is applied once; an embedded ICC profile is converted to sRGB (relative colorimetric),
/// and without one RGB is taken as sRGB; alpha is laid on white. Refused: animations and several pages, damaged or
/// truncated files (never half a picture), pictures over the limits, which are checked on the header alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::data {

struct ImageHeader {
  std::string format;             ///< "jpeg", "png", "webp", "heif" (avif and heic) or "tiff"
  int64_t width = 0, height = 0;  ///< as shown, after the EXIF orientation
  int bands = 0, bits = 0;        ///< as decoded: palettes count as colours
  bool alpha = false;
  int orientation = 1;  ///< EXIF 1..8
};

/// 8-bit sRGB, rows from the top: pixel (x, y) is rgb[3 * (y * width + x)] to +2.
struct Image {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb;
};

inline constexpr int64_t kMaxImagePixels = 178'000'000;  // Pillow's decompression bomb limit
inline constexpr int64_t kMaxImageSide = 32'768;
inline constexpr int64_t kMaxDecodedBytes = int64_t{1} << 30;
inline constexpr int64_t kMaxImageFileBytes = int64_t{256} << 20;

/// Where libtrainer_images.so is (absolute); call before the first picture. Not thread-safe.
void set_image_module(const std::filesystem::path& file);

/// The whole file, for the functions below: a regular file of at most kMaxImageFileBytes.
/// Throws Error (not_found, io, bad_input).
std::string read_image_file(const std::filesystem::path& file);

// The functions on bytes throw Error: bad_input with the reason alone, without the file's name, so that a scan can list
// many; unavailable when the module cannot be opened, with what to install.

ImageHeader read_image_header(std::string_view bytes);
/// Resized with Lanczos, as Pillow does, to cover width x height (both > 0), then cropped at the centre. Finds what verify_image finds.
Image decode_image(std::string_view bytes, int64_t width, int64_t height);
/// Decodes everything and keeps nothing: finds what a header does not show.
void verify_image(std::string_view bytes);
std::string encode_png(std::span<const uint8_t> rgb, int64_t width, int64_t height);

// The same on files; errors start with the file's name.

ImageHeader read_image_header(const std::filesystem::path& file);
Image load_image(const std::filesystem::path& file, int64_t width, int64_t height);
/// Replaces `file` atomically. `rgb` holds 3 * width * height bytes.
void write_png(const std::filesystem::path& file, std::span<const uint8_t> rgb, int64_t width, int64_t height);

}  // namespace trainer::data
