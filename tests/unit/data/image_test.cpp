#include <data/image.hpp>

#include "helpers.hpp"

#include <array>

namespace trainer::data {
namespace {

using Pixel = std::array<int, 3>;

Pixel pixel(const Image& image, int64_t x, int64_t y) {
  const uint8_t* at = &image.rgb[static_cast<std::size_t>(3 * (y * image.width + x))];
  return {at[0], at[1], at[2]};
}

/// The largest difference of the four quadrants' middles from bright red, bright blue, dark red, dark blue.
int quad_error(const Image& image) {
  const int64_t x = image.width / 4, y = image.height / 4;
  const std::array<std::pair<Pixel, Pixel>, 4> pairs = {{{pixel(image, x, y), {255, 0, 0}},
                                                         {pixel(image, 3 * x, y), {0, 0, 255}},
                                                         {pixel(image, x, 3 * y), {128, 0, 0}},
                                                         {pixel(image, 3 * x, 3 * y), {0, 0, 128}}}};
  int error = 0;
  for (const auto& [got, wanted] : pairs) {
    for (std::size_t c = 0; c < 3; ++c) error = std::max(error, std::abs(got[c] - wanted[c]));
  }
  return error;
}

class ImageTest : public testing::Test {
 protected:
  void SetUp() override { use_image_module(); }
};

TEST_F(ImageTest, EveryFormatGivesTheSamePicture) {
  for (const auto& [name, format, tolerance] : {std::tuple{"quad.png", "png", 0},
                                                {"quad.webp", "webp", 0},
                                                {"quad.tiff", "tiff", 0},
                                                {"palette.png", "png", 0},
                                                {"quad.jpg", "jpeg", 3},
                                                {"quad.avif", "heif", 6},
                                                {"orientation6.jpg", "jpeg", 3}}) {
    const ImageHeader header = read_image_header(fixture(name));
    EXPECT_EQ(header.format, format) << name;
    EXPECT_EQ(header.width, 48) << name;
    EXPECT_EQ(header.height, 32) << name;
    EXPECT_EQ(header.bits, 8) << name;
    EXPECT_LE(quad_error(load_image(fixture(name), 48, 32)), tolerance) << name;
  }
  EXPECT_EQ(read_image_header(fixture("orientation6.jpg")).orientation, 6);
}

TEST_F(ImageTest, AlphaIsLaidOnWhite) {
  EXPECT_TRUE(read_image_header(fixture("alpha.png")).alpha);
  const Image image = load_image(fixture("alpha.png"), 48, 32);
  EXPECT_EQ(pixel(image, 6, 8), (Pixel{255, 127, 127}));   // red, half there
  EXPECT_EQ(pixel(image, 40, 8), (Pixel{255, 255, 255}));  // blue, not there
}

TEST_F(ImageTest, SixteenBitGreyBecomesEightBitColour) {
  EXPECT_EQ(read_image_header(fixture("grey16.png")).bits, 16);
  EXPECT_EQ(pixel(load_image(fixture("grey16.png"), 32, 32), 5, 5), (Pixel{128, 128, 128}));
}

TEST_F(ImageTest, ColourProfilesAreConverted) {
  // Display P3 (187, 105, 62) is sRGB (200, 100, 50).
  const Pixel got = pixel(load_image(fixture("p3.png"), 32, 32), 9, 9);
  EXPECT_NEAR(got[0], 200, 1);
  EXPECT_NEAR(got[1], 100, 1);
  EXPECT_NEAR(got[2], 50, 1);
}

TEST_F(ImageTest, InkBecomesLight) {
  EXPECT_EQ(read_image_header(fixture("cmyk.jpg")).bands, 4);
  const Image image = load_image(fixture("cmyk.jpg"), 48, 32);
  const Pixel red = pixel(image, 12, 8), blue = pixel(image, 36, 8);
  EXPECT_GT(red[0], 2 * red[2]);
  EXPECT_GT(blue[2], 2 * blue[0]);
}

TEST_F(ImageTest, CoversAndCropsTheCentre) {
  // 48 x 32 to 16 x 16: scaled to 24 x 16, four columns lost at each side; the edge stays in the middle.
  const Image square = load_image(fixture("quad.png"), 16, 16);
  EXPECT_EQ(square.rgb.size(), 768U);
  EXPECT_LE(quad_error(square), 2);
  EXPECT_GT(pixel(square, 7, 2)[0], pixel(square, 7, 2)[2]);
  EXPECT_LT(pixel(square, 8, 2)[0], pixel(square, 8, 2)[2]);
  for (const auto& [width, height] : {std::pair{16, 64}, {97, 31}, {200, 16}, {48, 32}, {1, 1}, {49, 33}}) {
    const Image image = load_image(fixture("quad.jpg"), width, height);
    EXPECT_EQ(image.rgb.size(), static_cast<std::size_t>(3 * width * height));
  }
}

/// Noise, the same every time.
std::vector<uint8_t> noise(int64_t width, int64_t height) {
  std::vector<uint8_t> rgb(static_cast<std::size_t>(3 * width * height));
  uint32_t value = 1;
  for (uint8_t& byte : rgb) byte = static_cast<uint8_t>((value = value * 1664525U + 1013904223U) >> 24);
  return rgb;
}

/// Image.frombytes("RGB", from, noise).resize(to, Image.LANCZOS).crop(middle) of Pillow 13.0.0, as its FNV-1a; of the
/// last one, a tall picture, the width was resized by a call of its own.
TEST_F(ImageTest, ResizesAsPillowToTheBit) {
  struct Case {
    int64_t from_width, from_height, width, height;
    uint64_t hash;
  };
  for (const Case& one : {Case{37, 29, 16, 16, 0x2584d48e07159612U}, Case{64, 48, 32, 32, 0x1e75df8eb9e750f1U},
                          Case{48, 64, 96, 64, 0x7aea854032662e35U}, Case{16, 16, 64, 32, 0x6be5d7e1b3c38c8bU},
                          Case{64, 64, 64, 64, 0x9fb6c6c1cf946b73U}, Case{100, 40, 40, 40, 0xea9767b52abd6785U},
                          Case{301, 17, 20, 16, 0xd1c23da3c8eee91cU}, Case{40, 300, 33, 20, 0x7672fd4ca8a557cbU}}) {
    const std::string png = encode_png(noise(one.from_width, one.from_height), one.from_width, one.from_height);
    uint64_t hash = 0xcbf29ce484222325U;
    for (const uint8_t byte : decode_image(png, one.width, one.height).rgb) hash = (hash ^ byte) * 0x100000001b3U;
    EXPECT_EQ(hash, one.hash) << one.from_width << " x " << one.from_height;
  }
}

TEST_F(ImageTest, IsDeterministic) {
  EXPECT_EQ(load_image(fixture("quad.jpg"), 37, 41).rgb, load_image(fixture("quad.jpg"), 37, 41).rgb);
}

TEST_F(ImageTest, RefusalsSayWhy) {
  const auto refusal = [](const std::string& name) {
    return message_of([&] { read_image_header(fixture(name)); }, fixture(name).string() + ": ");
  };
  EXPECT_EQ(refusal("bomb_area.png"), "20000 x 20000 pixels, more than 178 million");
  EXPECT_EQ(refusal("bomb_side.png"), "40000 x 16 pixels, no side may be over 32768");
  EXPECT_EQ(refusal("bomb_bytes.png"), "13000 x 13000 pixels take 1289 MiB decoded, at most 1024 are allowed");
  EXPECT_EQ(refusal("animated.webp"), "is animated; keep one frame");
  EXPECT_EQ(refusal("animated.png"), "is animated; keep one frame");
  EXPECT_EQ(refusal("animated.avif"), "is animated; keep one frame");
  EXPECT_EQ(refusal("pages.tiff"), "has several pages; keep one");
  EXPECT_EQ(message_of([] { read_image_header(std::string_view("GIF89a")); }),
            "no picture in a format that is read (jpeg, png, webp, avif, heic, tiff)");
  EXPECT_EQ(message_of([] { read_image_header(std::string_view()); }),
            "no picture in a format that is read (jpeg, png, webp, avif, heic, tiff)");
  // Loaders that were not asked for stay shut, whatever the bytes are.
  EXPECT_EQ(message_of([] { read_image_header(std::string_view("<svg width=\"9\" height=\"9\"></svg>")); }),
            "no picture in a format that is read (jpeg, png, webp, avif, heic, tiff)");
}

/// `png` with other numbers for width and height.
std::string resized_header(std::string png, uint32_t width, uint32_t height) {
  const auto put = [&](std::size_t at, uint32_t number) {
    for (std::size_t i = 0; i < 4; ++i) png[at + i] = static_cast<char>(number >> (24 - 8 * i));
  };
  put(16, width);
  put(20, height);
  uint32_t crc = 0xFFFFFFFF;  // of the chunk's type and its 13 bytes
  for (std::size_t at = 12; at < 29; ++at) {
    crc ^= static_cast<unsigned char>(png[at]);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320 : 0);
  }
  put(29, ~crc);
  return png;
}

TEST_F(ImageTest, WhatIsNoPhotographIsRefused) {
  const std::string png = read_image_file(fixture("bomb_side.png"));
  ASSERT_EQ(resized_header(png, 40000, 16), png);
  EXPECT_EQ(message_of([&] { read_image_header(std::string_view(resized_header(png, 16, 40000))); }),
            "16 x 40000 pixels, no side may be over 32768");
  EXPECT_EQ(message_of([] { read_image_header(fixture("float.tiff")); }, fixture("float.tiff").string() + ": "),
            "colour space b-w with 1 channels of type float is not supported; convert it to 8 or 16 bit RGB");
}

/// Of several pictures in one file, as phones write them, the primary one is meant.
TEST_F(ImageTest, OfABurstThePrimaryPictureIsRead) {
  EXPECT_LE(quad_error(load_image(fixture("burst.avif"), 48, 32)), 6);
}

TEST_F(ImageTest, WhatCannotBeMadeOfAPictureIsTold) {
  const std::string strip = encode_png(std::vector<uint8_t>(3 * 32768, 7), 1, 32768);
  EXPECT_EQ(decode_image(strip, 32768, 16).rgb, std::vector<uint8_t>(3 * 32768 * 16, 7)) << "no size is too odd";
  std::string turned = read_image_file(fixture("orientation6.jpg"));
  turned.resize(turned.size() - 40);
  const std::string cut = message_of([&] { decode_image(turned, 16, 16); });
  EXPECT_TRUE(cut.starts_with("damaged jpeg: ")) << cut;
}

/// Each scan may go over all pixels again: a few kilobytes that decode for hours.
TEST_F(ImageTest, AJpegOfTooManyScansIsRefusedBeforeItIsDecoded) {
  const std::string bytes = read_image_file(fixture("quad.jpg"));
  const std::size_t scan = bytes.find("\xFF\xDA");
  ASSERT_NE(scan, std::string::npos);
  ASSERT_TRUE(bytes.ends_with("\xFF\xD9"));
  const std::string head = bytes.substr(0, scan), one = bytes.substr(scan, bytes.size() - 2 - scan);
  const auto with = [&](int scans, const std::string& behind = "") {
    std::string all = head;
    for (int i = 0; i < scans; ++i) all += one;
    return all + "\xFF\xD9" + behind;
  };
  const std::string refusal = "has more than 100 scans, as no program writes them; save it anew";
  EXPECT_EQ(message_of([&] { read_image_header(std::string_view(with(101))); }), refusal);
  EXPECT_EQ(message_of([&] { verify_image(with(10'000)); }), refusal);
  EXPECT_EQ(read_image_header(std::string_view(with(100))).width, 48);
  std::string behind;  // another picture behind the end of the first one counts for nothing
  for (int i = 0; i < 101; ++i) behind += one;
  EXPECT_EQ(read_image_header(std::string_view(with(1, behind))).width, 48);
  // What looks like scans inside a segment, as in a preview, is none.
  std::string comment("\xFF\xFE\x01\x00", 4);
  for (int i = 0; i < 127; ++i) comment += "\xFF\xDA";
  EXPECT_EQ(read_image_header(std::string_view(bytes.substr(0, 2) + comment + bytes.substr(2))).width, 48);
  std::string png = read_image_file(fixture("quad.png"));  // nor are any in a picture of another format
  for (int i = 0; i < 101; ++i) png += std::string("\xFF\xDA\x00\x02", 4);
  EXPECT_EQ(read_image_header(std::string_view(png)).width, 48);
}

TEST_F(ImageTest, SizesThatNoPictureHasAreNotMade) {
  const std::string bytes = read_image_file(fixture("quad.png"));
  for (const auto& [width, height] : {std::pair{0, 16}, {16, 0}, {-16, 16}, {16, -16}, {32769, 16}, {16, 32769}}) {
    EXPECT_NE(message_of([&] { decode_image(bytes, width, height); }).find("pixels was asked for"), std::string::npos);
  }
  for (const auto& [width, height] : {std::pair{0, 0}, {0, 1}, {1, 0}, {-1, -1}, {1, 2}}) {
    const std::vector<uint8_t> rgb(static_cast<std::size_t>(width == -1 ? 3 : 0));
    EXPECT_NE(message_of([&] { encode_png(rgb, width, height); }).find("pixels was asked for"), std::string::npos);
  }
}

TEST_F(ImageTest, TruncatedPicturesAreRefusedWhole) {
  for (const char* name : {"truncated.jpg", "truncated.png"}) {
    EXPECT_EQ(read_image_header(fixture(name)).width, 48) << name;  // the header alone is in order
    const std::string bytes = read_image_file(fixture(name));
    EXPECT_NE(message_of([&] { verify_image(bytes); }).find("damaged"), std::string::npos) << name;
    // Which of libvips' threads meets the end first varies; a picture once passed, its lower half black.
    for (int i = 0; i < 50; ++i) ASSERT_NE(message_of([&] { decode_image(bytes, 16, 16); }), "") << name << " " << i;
  }
}

TEST_F(ImageTest, DamageBelowTheCropIsFound) {
  constexpr int64_t kWidth = 64, kHeight = 4096;
  const std::string png = encode_png(noise(kWidth, kHeight), kWidth, kHeight);
  const std::string cut = png.substr(0, png.size() * 7 / 8);
  EXPECT_EQ(decode_image(png, 64, 64).height, 64);
  EXPECT_NE(message_of([&] { verify_image(cut); }), "");
  EXPECT_NE(message_of([&] { decode_image(cut, 64, 64); }), "");
}

TEST_F(ImageTest, EveryCutIsRefusedOrChangesNothing) {
  // A cut behind the last pixel's bytes may go unnoticed; half a picture never passes.
  for (const char* name : {"quad.png", "quad.jpg", "quad.webp", "quad.tiff", "quad.avif"}) {
    const std::string bytes = read_image_file(fixture(name));
    const std::vector<uint8_t> whole = decode_image(bytes, 48, 32).rgb;
    std::size_t refused = 0;
    for (std::size_t cut = 0; cut < bytes.size(); cut += 3) {
      try {
        EXPECT_EQ(decode_image(std::string_view(bytes).substr(0, cut), 48, 32).rgb, whole) << name << " " << cut;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), "IMAGE_UNREADABLE");
        ++refused;
      }
    }
    EXPECT_GT(refused, bytes.size() / 3 / 2) << name;
  }
}

TEST_F(ImageTest, PngGoesOutAndComesBack) {
  const TempFolder folder;
  std::vector<uint8_t> rgb(3 * 5 * 7);
  for (std::size_t i = 0; i < rgb.size(); ++i) rgb[i] = static_cast<uint8_t>(37 * i);
  write_png(folder / "a.png", rgb, 5, 7);
  const Image back = load_image(folder / "a.png", 5, 7);
  EXPECT_EQ(back.rgb, rgb);
  EXPECT_EQ(encode_png(rgb, 5, 7), read_image_file(folder / "a.png"));
  EXPECT_EQ(message_of([&] { encode_png(rgb, 5, 8); }), "a PNG of 5 x 8 pixels was asked for from 105 bytes");
}

TEST_F(ImageTest, FilesThatAreNotThereOrNoFiles) {
  const TempFolder folder;
  EXPECT_EQ(message_of([&] { load_image(folder / "a.png", 8, 8); }),
            "cannot open image " + (folder / "a.png").string() + ": No such file or directory");
  EXPECT_EQ(message_of([&] { load_image(folder.path(), 8, 8); }), "image " + folder.path().string() + " is a folder");
}

/// The message of a process that uses `module`: once opened, one stays.
void expect_unavailable(const std::filesystem::path& module, const std::string& reason) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        set_image_module(module);
        const std::string text = message_of([] { read_image_header(std::string_view("x")); });
        std::fputs(text.c_str(), stderr);
        std::exit(text.find(reason) != std::string::npos ? 7 : 1);
      },
      testing::ExitedWithCode(7), "Install libvips .Debian and Ubuntu: apt install libvips42.");
}

TEST(ImageModule, WithoutItTheMessageSaysWhatToInstall) {
  expect_unavailable("/nowhere/libtrainer_images.so", "/nowhere/libtrainer_images.so");
  expect_unavailable("", "no image module is named");
}

TEST(ImageModule, OneOfAnotherVersionIsNotUsed) {
  const std::filesystem::path folder = std::filesystem::canonical("/proc/self/exe").parent_path();
  expect_unavailable(folder / "libimages_of_tomorrow.so", "has interface version 1000, this program needs ");
  expect_unavailable(folder / "libimages_of_none.so", "has no function trainer_images_version");
}

}  // namespace
}  // namespace trainer::data
