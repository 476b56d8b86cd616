#include <data/image.hpp>

#include <data/images_api.h>
#include <base/files.hpp>
#include <plugin/library.hpp>
#include <trainer/sdk/error.hpp>

#include <array>
#include <utility>

namespace trainer::data {
namespace {

constexpr TrainerImageLimits kLimits{kMaxImagePixels, kMaxImageSide, kMaxDecodedBytes};
using Message = std::array<char, TRAINER_IMAGES_MESSAGE_BYTES>;

std::filesystem::path& module_file() {
  static std::filesystem::path file;
  return file;
}

struct Module {
  TrainerImagesReadHeader header;
  TrainerImagesDecode decode;
  TrainerImagesEncodePng encode_png;
  TrainerImagesFree free;
};

[[noreturn]] void unavailable(const std::string& reason) {
  throw Error(
      ExitCode::unavailable,
      "pictures cannot be read or written: " + reason + "\nInstall libvips (Debian and Ubuntu: apt install libvips42).",
      "IMAGES_UNAVAILABLE");
}

template <typename Function>
Function function_of(const void* library, const std::string& name) {
  const auto function = plugin::find_function<Function>(library, name);
  if (function == nullptr) unavailable(module_file().string() + " has no function " + name);
  return function;
}

Module open_module() {
  if (module_file().empty()) unavailable("no image module is named");
  const void* library = nullptr;
  try {
    library = plugin::open(module_file(), plugin::Scope::local);
  } catch (const plugin::OpenError& error) {
    unavailable(error.what());
  }
  const int version = function_of<TrainerImagesVersion>(library, "trainer_images_version")();
  if (version != TRAINER_IMAGES_VERSION) {
    unavailable(module_file().string() + " has interface version " + std::to_string(version) + ", this program needs " +
                std::to_string(TRAINER_IMAGES_VERSION));
  }
  return {function_of<TrainerImagesReadHeader>(library, "trainer_images_header"),
          function_of<TrainerImagesDecode>(library, "trainer_images_decode"),
          function_of<TrainerImagesEncodePng>(library, "trainer_images_encode_png"),
          function_of<TrainerImagesFree>(library, "trainer_images_free")};
}

/// Opened at the first call that needs it; a failure is tried again at the next.
const Module& module() {
  static const Module opened = open_module();
  return opened;
}

void require(int result, const Message& message) {
  if (result != 0) throw Error(ExitCode::bad_input, message.data(), "IMAGE_UNREADABLE");
}

template <typename Work>
auto named(const std::filesystem::path& file, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::bad_input) throw;
    throw error.context(file.string());
  }
}

}  // namespace

void set_image_module(const std::filesystem::path& file) { module_file() = file; }

std::string read_image_file(const std::filesystem::path& file) { return read_file(file, kMaxImageFileBytes, "image"); }

ImageHeader read_image_header(std::string_view bytes) {
  TrainerImageHeader header{};
  Message message{};
  require(module().header(bytes.data(), bytes.size(), &kLimits, &header, message.data()), message);
  return {header.format, header.width,          header.height,     header.bands,
          header.bits,   header.has_alpha != 0, header.orientation};
}

Image decode_image(std::string_view bytes, int64_t width, int64_t height) {
  if (width <= 0 || height <= 0 || width > kMaxImageSide || height > kMaxImageSide) {
    throw Error(ExitCode::failed,
                "an image of " + std::to_string(width) + " x " + std::to_string(height) + " pixels was asked for");
  }
  Image image{width, height, std::vector<uint8_t>(static_cast<std::size_t>(3 * width * height))};
  Message message{};
  require(module().decode(bytes.data(), bytes.size(), &kLimits, width, height, image.rgb.data(), message.data()),
          message);
  return image;
}

void verify_image(std::string_view bytes) {
  Message message{};
  require(module().decode(bytes.data(), bytes.size(), &kLimits, 0, 0, nullptr, message.data()), message);
}

std::string encode_png(std::span<const uint8_t> rgb, int64_t width, int64_t height) {
  if (width <= 0 || height <= 0 || static_cast<int64_t>(rgb.size()) != 3 * width * height) {
    throw Error(ExitCode::failed, "a PNG of " + std::to_string(width) + " x " + std::to_string(height) +
                                      " pixels was asked for from " + std::to_string(rgb.size()) + " bytes");
  }
  void* png = nullptr;
  std::size_t size = 0;
  Message message{};
  require(module().encode_png(rgb.data(), width, height, &png, &size, message.data()), message);
  std::string bytes(static_cast<const char*>(png), size);
  module().free(png);
  return bytes;
}

ImageHeader read_image_header(const std::filesystem::path& file) {
  const std::string bytes = read_image_file(file);
  return named(file, [&] { return read_image_header(std::string_view(bytes)); });
}

Image load_image(const std::filesystem::path& file, int64_t width, int64_t height) {
  const std::string bytes = read_image_file(file);
  return named(file, [&] { return decode_image(bytes, width, height); });
}

void write_png(const std::filesystem::path& file, std::span<const uint8_t> rgb, int64_t width, int64_t height) {
  write_file_atomically(file, encode_png(rgb, width, height));
}

}  // namespace trainer::data
