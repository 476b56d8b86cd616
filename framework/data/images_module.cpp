// libtrainer_images.so: libvips behind the C interface of images_api.h. The only source that includes libvips.
#include <data/images_api.h>
#include <data/resample.hpp>

#include <vips/vips.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace {

constexpr int kMaxScans = 100;  // as libtiff allows; programs write up to a few dozen

struct Unref {
  void operator()(VipsImage* image) const { g_object_unref(image); }
};
using Picture = std::unique_ptr<VipsImage, Unref>;

/// A reason for the user; caught at the C boundary.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// libvips' error buffer as one line, emptied.
std::string vips_reason() {
  std::string text = vips_error_buffer();
  vips_error_clear();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ';');
  return text.empty() ? "unknown reason" : text;
}

/// Takes the result of a libvips call with output `made`.
Picture taken(int result, VipsImage* made, const char* doing) {
  if (result != 0) throw Refused(std::string(doing) + ": " + vips_reason());
  return Picture(made);
}

void drop_message(const char*, GLogLevelFlags, const char*, void*) {}

/// Once per process. Only these five loaders may run: whatever the bytes claim to be, nothing else parses them.
void start() {
  static const bool started = [] {
    if (VIPS_INIT("trainer") != 0) return false;
    vips_block_untrusted_set(TRUE);
    vips_operation_block_set("VipsForeignLoad", TRUE);
    for (const char* loader : {"VipsForeignLoadJpeg", "VipsForeignLoadPng", "VipsForeignLoadWebp",
                               "VipsForeignLoadHeif", "VipsForeignLoadTiff"}) {
      vips_operation_block_set(loader, FALSE);
    }
    vips_cache_set_max(0);  // inputs are memory of the caller: a cached operation would outlive it
    g_log_set_handler("VIPS", static_cast<GLogLevelFlags>(G_LOG_LEVEL_WARNING | G_LOG_LEVEL_MESSAGE | G_LOG_LEVEL_INFO),
                      drop_message, nullptr);
    return true;
  }();
  if (!started) throw Refused("libvips cannot start: " + vips_reason());
}

/// The class that reads these bytes, such as "VipsForeignLoadJpegBuffer"; empty without one.
std::string loader_of(const void* bytes, size_t size) {
  const char* loader = vips_foreign_find_load_buffer(bytes, size);
  vips_error_clear();
  return loader == nullptr ? "" : loader;
}

/// "VipsForeignLoadJpegBuffer" -> "jpeg".
std::string format_of(std::string_view loader) {
  for (const auto& [part, format] :
       {std::pair{"Jpeg", "jpeg"}, {"Png", "png"}, {"Webp", "webp"}, {"Heif", "heif"}, {"Tiff", "tiff"}}) {
    if (loader.find(part) != std::string_view::npos) return format;
  }
  throw Refused("no picture in a format that is read (jpeg, png, webp, avif, heic, tiff)");
}

/// Animations that libvips does not tell apart: AVIF with the brand avis, PNG with an acTL chunk before the pixels.
bool hidden_animation(std::string_view bytes) {
  if (bytes.substr(0, 12).ends_with("ftypavis")) return true;
  if (!bytes.starts_with("\x89PNG\r\n\x1A\n")) return false;
  for (size_t at = 8; at + 8 <= bytes.size();) {
    const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(bytes[at + i])); };
    const std::string_view type = bytes.substr(at + 4, 4);
    if (type == "acTL") return true;
    if (type == "IDAT") return false;
    at += 12 + ((byte(0) << 24) | (byte(1) << 16) | (byte(2) << 8) | byte(3));
  }
  return false;
}

/// The scans of a JPEG: each may go over all of its pixels again, so that a file of a few kilobytes decodes for hours.
/// A marker without a length (restart, fill bytes) and a 0xFF within a scan's data are passed over.
int scans_of(std::string_view bytes) {
  int scans = 0;
  for (size_t at = bytes.find('\xFF', 2); at != std::string_view::npos && at + 4 <= bytes.size();) {
    const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(bytes[at + i])); };
    const size_t marker = byte(1);
    if (marker == 0xD9) break;  // what follows is another picture
    if (marker == 0xDA) ++scans;
    const bool alone = marker <= 0x01 || (marker >= 0xD0 && marker <= 0xD8);
    at = bytes.find('\xFF', at + (marker == 0xFF ? 1 : alone ? 2 : 2 + ((byte(2) << 8) | byte(3))));
  }
  return scans;
}

int64_t bytes_per_sample(const VipsImage* image) {
  return static_cast<int64_t>(vips_format_sizeof(vips_image_get_format(image)));
}

void check_limits(const VipsImage* image, const TrainerImageLimits& limits) {
  const int64_t width = vips_image_get_width(image), height = vips_image_get_height(image);
  const std::string size = std::to_string(width) + " x " + std::to_string(height) + " pixels";
  if (width > limits.max_side || height > limits.max_side) {
    throw Refused(size + ", no side may be over " + std::to_string(limits.max_side));
  }
  if (width * height > limits.max_pixels) {
    throw Refused(size + ", more than " + std::to_string(limits.max_pixels / 1'000'000) + " million");
  }
  const int64_t bytes = width * height * vips_image_get_bands(image) * bytes_per_sample(image);
  if (bytes > limits.max_decoded_bytes) {
    throw Refused(size + " take " + std::to_string(bytes >> 20) + " MiB decoded, at most " +
                  std::to_string(limits.max_decoded_bytes >> 20) + " are allowed");
  }
}

/// Colour spaces with an agreed way to sRGB.
void check_colours(const VipsImage* image) {
  const VipsInterpretation space = vips_image_get_interpretation(image);
  const int colours = vips_image_get_bands(image) - (vips_image_hasalpha(const_cast<VipsImage*>(image)) != 0 ? 1 : 0);
  const bool known = (colours == 3 && (space == VIPS_INTERPRETATION_sRGB || space == VIPS_INTERPRETATION_RGB16)) ||
                     (colours == 1 && (space == VIPS_INTERPRETATION_B_W || space == VIPS_INTERPRETATION_GREY16)) ||
                     (colours == 4 && space == VIPS_INTERPRETATION_CMYK);
  const VipsBandFormat format = vips_image_get_format(image);
  if (known && (format == VIPS_FORMAT_UCHAR || format == VIPS_FORMAT_USHORT)) return;
  throw Refused("colour space " + std::string(vips_enum_nick(VIPS_TYPE_INTERPRETATION, space)) + " with " +
                std::to_string(colours) + " channels of type " + vips_enum_nick(VIPS_TYPE_BAND_FORMAT, format) +
                " is not supported; convert it to 8 or 16 bit RGB");
}

/// The picture with its header read and checked; pixels are decoded when asked for.
Picture open_image(const void* bytes, size_t size, const TrainerImageLimits& limits, std::string& format) {
  start();
  if (hidden_animation({static_cast<const char*>(bytes), size})) throw Refused("is animated; keep one frame");
  const std::string loader = loader_of(bytes, size);
  format = format_of(loader);
  if (format == "jpeg" && scans_of({static_cast<const char*>(bytes), size}) > kMaxScans)
    throw Refused("has more than " + std::to_string(kMaxScans) + " scans, as no program writes them; save it anew");
  // As vips_image_new_from_buffer does, which would look for the loader again.
  VipsImage* opened = nullptr;
  VipsBlob* blob = vips_blob_new(nullptr, bytes, size);
  const int result = vips_call(loader.c_str(), blob, &opened, "access", VIPS_ACCESS_SEQUENTIAL, "fail_on",
                               VIPS_FAIL_ON_ERROR, nullptr);
  vips_area_unref(VIPS_AREA(blob));
  if (result != 0) throw Refused("damaged " + format + ": " + vips_reason());
  Picture image(opened);
  check_limits(image.get(), limits);
  // A heic file may hold a burst or a thumbnail beside its primary picture, which is the one that is read.
  if (format != "heif" && vips_image_get_n_pages(image.get()) > 1) {
    throw Refused(format == "tiff" ? "has several pages; keep one" : "is animated; keep one frame");
  }
  check_colours(image.get());
  vips_error_clear();  // loaders note what they tried in vain while they looked for the header
  return image;
}

/// Alpha laid on white, in the picture's own colour space (where white is white in every one that is accepted).
Picture flattened(Picture image) {
  if (vips_image_hasalpha(image.get()) == 0) return image;
  const bool sixteen = vips_image_get_format(image.get()) == VIPS_FORMAT_USHORT;
  const bool ink = vips_image_get_interpretation(image.get()) == VIPS_INTERPRETATION_CMYK;
  const double full = sixteen ? 65535 : 255, white[1] = {ink ? 0.0 : full};
  VipsArrayDouble* background = vips_array_double_new(white, 1);
  VipsImage* flat = nullptr;
  const int result = vips_flatten(image.get(), &flat, "background", background, "max_alpha", full, nullptr);
  vips_area_unref(VIPS_AREA(background));
  return taken(result, flat, "cannot remove the alpha channel");
}

/// 8-bit sRGB, three bands. A damaged profile, or one for another colour space, counts as none.
Picture to_srgb(Picture image) {
  const bool ink = vips_image_get_interpretation(image.get()) == VIPS_INTERPRETATION_CMYK;
  VipsImage* converted = nullptr;
  if (ink || vips_image_get_typeof(image.get(), VIPS_META_ICC_NAME) != 0) {
    const int result = vips_icc_transform(image.get(), &converted, "srgb", "embedded", TRUE, "input_profile",
                                          ink ? "cmyk" : "srgb", "intent", VIPS_INTENT_RELATIVE, "depth", 8, nullptr);
    if (result == 0) image.reset(std::exchange(converted, nullptr));
    if (result != 0 && ink) throw Refused("cannot convert CMYK to sRGB: " + vips_reason());
    vips_error_clear();
  }
  const bool there = vips_image_get_interpretation(image.get()) == VIPS_INTERPRETATION_sRGB &&
                     vips_image_get_format(image.get()) == VIPS_FORMAT_UCHAR;
  if (there) return image;
  const int result = vips_colourspace(image.get(), &converted, VIPS_INTERPRETATION_sRGB, nullptr);
  return taken(result, converted, "cannot convert to sRGB");
}

/// libvips' tile cache paints a tile that cannot be decoded black, notes the reason and may still report success, as
/// other threads run: what it noted is the failure.
void require_decoded(bool succeeded, const std::string& format) {
  if (!succeeded || *vips_error_buffer() != '\0') throw Refused("damaged " + format + ": " + vips_reason());
}

/// Upright. Rotating reads the whole picture at once, so it is brought into memory first.
Picture upright(Picture image, const std::string& format) {
  if (vips_image_get_orientation(image.get()) == 1) return image;
  const Picture whole(vips_image_copy_memory(image.get()));
  require_decoded(whole != nullptr, format);
  VipsImage* turned = nullptr;
  const int result = vips_autorot(whole.get(), &turned, nullptr);
  return taken(result, turned, "cannot apply the EXIF orientation");
}

struct UnrefRegion {
  void operator()(VipsRegion* region) const { g_object_unref(region); }
};

/// Every row from the top, decoded in this thread.
template <typename Use>
void each_row(VipsImage* image, const std::string& format, const Use& use) {
  constexpr int kRows = 16, kBytes = 1 << 18;  // at once: at least the loader's tiles, little memory
  const int width = vips_image_get_width(image), height = vips_image_get_height(image);
  const int step = std::max(kRows, kBytes / (3 * width));
  const std::unique_ptr<VipsRegion, UnrefRegion> region(vips_region_new(image));
  for (int top = 0; top < height; top += step) {
    const VipsRect rows{0, top, width, std::min(step, height - top)};
    require_decoded(vips_region_prepare(region.get(), &rows) == 0, format);
    for (int y = top; y < top + rows.height; ++y) use(VIPS_REGION_ADDR(region.get(), 0, y));
  }
}

/// Resized to the smallest size with the same aspect that covers width x height, then the centre of it.
void cover(VipsImage* image, const std::string& format, int64_t width, int64_t height, uint8_t* rgb) {
  const int64_t from_width = vips_image_get_width(image), from_height = vips_image_get_height(image);
  const double scale = std::max(static_cast<double>(width) / static_cast<double>(from_width),
                                static_cast<double>(height) / static_cast<double>(from_height));
  const auto side = [&](int64_t from, int64_t least) {
    return std::max(least, static_cast<int64_t>(std::round(static_cast<double>(from) * scale)));
  };
  trainer::data::Resampler resampler(
      {from_width, from_height, side(from_width, width), side(from_height, height), width, height});
  each_row(image, format, [&](const uint8_t* row) { resampler.add(row); });
  resampler.finish(rgb);
}

/// Decodes every pixel, keeping none.
void read_through(VipsImage* image, const std::string& format) {
  double highest = 0;
  require_decoded(vips_max(image, &highest, nullptr) == 0, format);
}

template <typename Work>
int guarded(char* message, const Work& work) {
  try {
    work();
    vips_thread_shutdown();
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, TRAINER_IMAGES_MESSAGE_BYTES, "%s", error.what());
  } catch (...) {
    std::snprintf(message, TRAINER_IMAGES_MESSAGE_BYTES, "unknown failure");
  }
  return 1;
}

}  // namespace

#define TRAINER_IMAGES_EXPORT extern "C" __attribute__((visibility("default")))

TRAINER_IMAGES_EXPORT int trainer_images_version() { return TRAINER_IMAGES_VERSION; }

TRAINER_IMAGES_EXPORT int trainer_images_header(const void* bytes, size_t size, const TrainerImageLimits* limits,
                                                TrainerImageHeader* header, char* message) {
  return guarded(message, [&] {
    std::string format;
    const Picture image = open_image(bytes, size, *limits, format);
    *header = {};
    std::snprintf(header->format, sizeof header->format, "%s", format.c_str());
    header->width = vips_image_get_width(image.get());
    header->height = vips_image_get_height(image.get());
    header->bands = vips_image_get_bands(image.get());
    header->bits = static_cast<int32_t>(8 * bytes_per_sample(image.get()));
    header->has_alpha = vips_image_hasalpha(image.get()) != 0 ? 1 : 0;
    header->orientation = vips_image_get_orientation(image.get());
    if (vips_image_get_orientation_swap(image.get()) != 0) std::swap(header->width, header->height);
  });
}

TRAINER_IMAGES_EXPORT int trainer_images_decode(const void* bytes, size_t size, const TrainerImageLimits* limits,
                                                int64_t width, int64_t height, uint8_t* rgb, char* message) {
  return guarded(message, [&] {
    std::string format;
    Picture image = open_image(bytes, size, *limits, format);
    if (width == 0) return read_through(image.get(), format);
    image = upright(to_srgb(flattened(std::move(image))), format);
    cover(image.get(), format, width, height, rgb);
  });
}

TRAINER_IMAGES_EXPORT int trainer_images_encode_png(const uint8_t* rgb, int64_t width, int64_t height, void** png,
                                                    size_t* size, char* message) {
  return guarded(message, [&] {
    start();
    VipsImage* made = vips_image_new_from_memory(rgb, static_cast<size_t>(3 * width * height), static_cast<int>(width),
                                                 static_cast<int>(height), 3, VIPS_FORMAT_UCHAR);
    if (made == nullptr) throw Refused("cannot make a picture: " + vips_reason());
    const Picture image(made);
    image->Type = VIPS_INTERPRETATION_sRGB;
    if (vips_pngsave_buffer(image.get(), png, size, "strip", TRUE, nullptr) != 0) {
      throw Refused("cannot write PNG: " + vips_reason());
    }
  });
}

TRAINER_IMAGES_EXPORT void trainer_images_free(void* memory) { g_free(memory); }
