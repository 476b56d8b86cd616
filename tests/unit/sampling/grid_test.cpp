#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sampling/bitmap_font.hpp>
#include <sampling/grid.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::sampling {
namespace {

using Lines = std::vector<std::string>;

at::Tensor picture(int64_t height, int64_t width, int value) {
  return at::full({3, height, width}, value, at::TensorOptions(at::kByte));
}

/// Pixels darker than paper in a part of the grid.
int64_t ink(const at::Tensor& grid, int64_t top, int64_t left, int64_t height, int64_t width) {
  return (grid.narrow(0, top, height).narrow(1, left, width).select(2, 0) == 32).sum().item<int64_t>();
}

TEST(Font, DrawsWhatItSays) {
  EXPECT_EQ(glyph('T'), (std::array<uint8_t, 9>{0x1F, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04, 0, 0}));
  EXPECT_EQ(glyph(' '), (std::array<uint8_t, 9>{}));
  EXPECT_NE(glyph('g')[8], 0);  // a descender
  EXPECT_EQ(glyph('\x01'), glyph('\x7f'));
  EXPECT_EQ(glyph('\xff'), glyph('\x7f'));
}

TEST(Font, EveryPrintableCharacterHasItsOwnGlyph) {
  for (int a = '!'; a <= '~'; ++a) {
    EXPECT_NE(glyph(static_cast<char>(a)), glyph(' ')) << a;
    for (int b = a + 1; b <= 0x7f; ++b)
      EXPECT_NE(glyph(static_cast<char>(a)), glyph(static_cast<char>(b))) << a << " " << b;
  }
}

TEST(Font, OtherCharactersAreOneBoxEach) {
  EXPECT_EQ(to_drawable("a\tb\n~"), "a b ~");
  EXPECT_EQ(to_drawable("caf\xC3\xA9!"), "caf\x7f!");
  EXPECT_EQ(to_drawable("\xE5\xA3\xAB\xF0\x9F\x98\x80."), "\x7f\x7f.");
  EXPECT_EQ(to_drawable("\x01"), "\x7f");
}

TEST(Wrap, BreaksBetweenWords) {
  EXPECT_EQ(wrap_text("a photo of a cat", 8, 9), (Lines{"a photo", "of a cat"}));
  EXPECT_EQ(wrap_text("exactly8 fits", 8, 9), (Lines{"exactly8", "fits"}));
  EXPECT_EQ(wrap_text("  two   spaces ", 20, 9), (Lines{"two   spaces"}));
  EXPECT_EQ(wrap_text("averyverylongword x", 8, 9), (Lines{"averyver", "ylongwor", "d x"}));
  EXPECT_EQ(wrap_text("", 8, 9), Lines{});
  EXPECT_EQ(wrap_text("   ", 8, 9), Lines{});
}

TEST(Wrap, SaysWhenSomethingIsLeftOut) {
  EXPECT_EQ(wrap_text("a photo of a cat", 8, 1), (Lines{"a pho..."}));
  EXPECT_EQ(wrap_text("one two three four", 7, 2), (Lines{"one two", "thre..."}));
  EXPECT_EQ(wrap_text("one two", 7, 1), (Lines{"one two"}));
}

TEST(Grid, PlacesPicturesWithoutTextAtTheirPixels) {
  const std::vector<GridRow> rows = {{"", {picture(130, 140, 1), picture(128, 128, 2)}},
                                     {"", {{}, picture(20, 30, 3)}}};
  const at::Tensor grid = make_grid(rows, {});
  EXPECT_EQ(grid.sizes(), (std::vector<int64_t>{8 + 130 + 8 + 20 + 8, 8 + 140 + 8 + 128 + 8, 3}));
  EXPECT_TRUE(grid.is_contiguous());
  const auto value = [&](int64_t y, int64_t x) { return static_cast<int>(grid[y][x][2].item<uint8_t>()); };
  EXPECT_EQ(value(7, 8), 255);
  EXPECT_EQ(value(8, 8), 1);
  EXPECT_EQ(value(137, 147), 1);
  EXPECT_EQ(value(138, 147), 255);
  EXPECT_EQ(value(8, 148), 255);
  EXPECT_EQ(value(8, 156), 2);
  EXPECT_EQ(value(136, 156), 255);  // the second picture is 2 rows lower than its row
  EXPECT_EQ(value(146, 156), 3);
  EXPECT_EQ(value(146, 8), 255);  // an empty place
}

TEST(Grid, EnlargesMiniaturesByRepeatingPixels) {
  at::Tensor image = at::zeros({3, 64, 64}, at::kByte);
  image[1][10][20] = 77;
  const at::Tensor grid = make_grid(std::vector<GridRow>{{"", {image}}}, {});
  EXPECT_EQ(grid.sizes(), (std::vector<int64_t>{8 + 128 + 8, 8 + 128 + 8, 3}));
  EXPECT_EQ((grid.select(2, 1) == 77).sum().item<int64_t>(), 4);
  EXPECT_EQ(grid[8 + 20][8 + 40][1].item<uint8_t>(), 77);
  EXPECT_EQ(grid[8 + 21][8 + 41][1].item<uint8_t>(), 77);
}

TEST(Grid, DrawsLabelsAndTitles) {
  const std::vector<GridRow> rows = {{"T", {picture(128, 128, 9), picture(128, 128, 9)}}};
  const Lines titles = {"before", "after"};
  const at::Tensor grid = make_grid(rows, titles);
  const int64_t label = 24 * kCharAdvance, left = 8 + label + 8, top = 8 + kGlyphHeight + 8;
  EXPECT_EQ(grid.sizes(), (std::vector<int64_t>{top + 128 + 8, left + 128 + 8 + 128 + 8, 3}));
  EXPECT_EQ(ink(grid, 0, 0, top, left), 0);
  EXPECT_GT(ink(grid, 8, left, kGlyphHeight, 6 * kCharAdvance), 40);  // "before"
  EXPECT_EQ(ink(grid, 8, left + 6 * kCharAdvance, kGlyphHeight, 128 - 6 * kCharAdvance), 0);
  EXPECT_GT(ink(grid, 8, left + 128 + 8, kGlyphHeight, 5 * kCharAdvance), 30);  // "after"
  EXPECT_EQ(ink(grid, top, 8, kGlyphHeight, kGlyphWidth), 11);                  // the 11 pixels of a T
  EXPECT_EQ(ink(grid, top, 0, 128, left), 11);
  EXPECT_EQ(grid[top][8][0].item<uint8_t>(), 32);
}

TEST(Grid, LongLabelsStayInTheirRow) {
  const std::string text = "a very long prompt that goes on and on. ";
  const std::vector<GridRow> rows = {
      {text + text + text + text + text + text + text + text + text, {picture(40, 200, 9)}},
      {"", {picture(40, 200, 9)}}};
  const at::Tensor grid = make_grid(rows, {});
  const int64_t label = 24 * kCharAdvance;
  EXPECT_GT(ink(grid, 8, 8, 40, label), 500);
  EXPECT_EQ(ink(grid, 48, 0, grid.size(0) - 48, label), 0);
  EXPECT_EQ(ink(grid, 0, label + 8, grid.size(0), 8), 0);
}

TEST(Grid, TextGrowsWithThePictures) {
  const at::Tensor grid = make_grid(std::vector<GridRow>{{"T", {picture(512, 512, 9)}}}, {});
  EXPECT_EQ(ink(grid, 0, 0, grid.size(0), 16 + 24 * kCharAdvance * 2), 11 * 4);  // every glyph pixel is 2x2
}

TEST(Grid, RefusesWhatIsNoPicture) {
  const auto refused = [](std::vector<GridRow> rows, const Lines& titles) {
    EXPECT_THROW(make_grid(rows, titles), Error);
  };
  refused({}, {});
  refused({{"empty", {}}}, {});
  refused({{"", {at::zeros({3, 4, 4})}}}, {});
  refused({{"", {at::zeros({4, 4, 3}, at::kByte)}}}, {});
  refused({{"", {picture(4, 4, 1), picture(4, 4, 1)}}}, {"one"});
}

}  // namespace
}  // namespace trainer::sampling
