#include <ATen/ops/full.h>
#include <algorithm>
#include <sampling/bitmap_font.hpp>
#include <sampling/grid.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::sampling {
namespace {

constexpr uint8_t kPaper = 255, kInk = 32;
constexpr int64_t kMinCell = 128;        // narrower pictures are enlarged
constexpr int64_t kTextScaleCell = 192;  // pixels of a cell for each step of the text size

/// Sizes in pixels of one grid.
struct Layout {
  int64_t zoom = 1, text = 1;    // enlargement of pictures, of glyph pixels
  int64_t gap = 0;               // between and around cells
  int64_t label = 0, title = 0;  // width of the label column, height of the title row; 0: none
  std::vector<int64_t> widths, heights;

  [[nodiscard]] int64_t left(std::size_t column) const {
    int64_t x = gap + (label > 0 ? label + gap : 0);
    for (std::size_t i = 0; i < column; ++i) x += widths[i] + gap;
    return x;
  }
  [[nodiscard]] int64_t top(std::size_t row) const {
    int64_t y = gap + (title > 0 ? title + gap : 0);
    for (std::size_t i = 0; i < row; ++i) y += heights[i] + gap;
    return y;
  }
};

void check(std::span<const GridRow> rows, std::span<const std::string> columns) {
  bool any = false;
  for (const GridRow& row : rows) {
    if (!columns.empty() && row.images.size() > columns.size()) {
      throw Error(ExitCode::failed, "a grid row has more images than there are column titles");
    }
    for (const at::Tensor& image : row.images) {
      if (!image.defined()) continue;
      any = true;
      const bool good = image.dim() == 3 && image.size(0) == 3 && image.scalar_type() == at::kByte &&
                        image.device().is_cpu() && image.numel() > 0;
      if (!good) throw Error(ExitCode::failed, "grid images must be uint8 [3,H,W] on the CPU");
    }
  }
  if (!any) throw Error(ExitCode::failed, "a grid needs at least one image");
}

Layout lay_out(std::span<const GridRow> rows, std::span<const std::string> columns) {
  Layout layout;
  std::size_t count = columns.size();
  for (const GridRow& row : rows) count = std::max(count, row.images.size());
  layout.widths.assign(count, 0);
  layout.heights.assign(rows.size(), 0);
  int64_t widest = 1;
  bool labels = false;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    labels |= !rows[r].label.empty();
    for (std::size_t c = 0; c < rows[r].images.size(); ++c) {
      const at::Tensor& image = rows[r].images[c];
      if (!image.defined()) continue;
      layout.widths[c] = std::max(layout.widths[c], image.size(2));
      layout.heights[r] = std::max(layout.heights[r], image.size(1));
      widest = std::max(widest, image.size(2));
    }
  }
  layout.zoom = std::max<int64_t>((kMinCell + widest - 1) / widest, 1);
  layout.text = std::max<int64_t>(widest * layout.zoom / kTextScaleCell, 1);
  layout.gap = 8 * layout.text;
  // Empty columns and rows keep room for a title and a line of label.
  for (int64_t& width : layout.widths) width = std::max(width * layout.zoom, 8 * kCharAdvance * layout.text);
  for (int64_t& height : layout.heights) height = std::max(height * layout.zoom, kLineAdvance * layout.text);
  layout.label = labels ? 24 * kCharAdvance * layout.text : 0;
  layout.title = columns.empty() ? 0 : kGlyphHeight * layout.text;
  return layout;
}

void draw_line(const at::Tensor& canvas, int64_t x, int64_t y, int64_t scale, const std::string& text) {
  for (const char character : text) {
    const auto& rows = glyph(character);
    for (int64_t j = 0; j < kGlyphHeight; ++j) {
      for (int64_t i = 0; i < kGlyphWidth; ++i) {
        if ((rows[j] >> (kGlyphWidth - 1 - i) & 1) == 0) continue;
        canvas.narrow(0, y + j * scale, scale).narrow(1, x + i * scale, scale).fill_(kInk);
      }
    }
    x += kCharAdvance * scale;
  }
}

void draw_text(const at::Tensor& canvas, int64_t x, int64_t y, int64_t width, int64_t height, int64_t scale,
               const std::string& text) {
  const int64_t lines = std::max<int64_t>((height + 2 * scale) / (kLineAdvance * scale), 1);  // no space below the last
  for (const std::string& line : wrap_text(to_drawable(text), width / (kCharAdvance * scale), lines)) {
    draw_line(canvas, x, y, scale, line);
    y += kLineAdvance * scale;
  }
}

}  // namespace

std::vector<std::string> wrap_text(std::string_view text, int64_t width, int64_t lines) {
  const auto limit = static_cast<std::size_t>(std::max<int64_t>(width, 4));
  std::vector<std::string> wrapped;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) return wrapped;
    std::size_t end = text.size();
    if (end > limit) {
      const std::size_t space = text.rfind(' ', limit);
      end = space == std::string_view::npos || space == 0 ? limit : space;
    }
    std::string line(text.substr(0, end));
    line.erase(line.find_last_not_of(' ') + 1);
    text.remove_prefix(end);
    const bool rest = text.find_first_not_of(' ') != std::string_view::npos;
    if (rest && static_cast<int64_t>(wrapped.size()) + 1 >= lines) {
      line.resize(std::min(line.size(), limit - 3));
      wrapped.push_back(line + "...");
      return wrapped;
    }
    wrapped.push_back(std::move(line));
  }
}

at::Tensor make_grid(std::span<const GridRow> rows, std::span<const std::string> columns) {
  check(rows, columns);
  const Layout layout = lay_out(rows, columns);
  at::Tensor canvas =
      at::full({layout.top(rows.size()), layout.left(layout.widths.size()), 3}, kPaper, at::TensorOptions(at::kByte));
  for (std::size_t c = 0; c < columns.size(); ++c) {
    draw_text(canvas, layout.left(c), layout.gap, layout.widths[c], layout.title, layout.text, columns[c]);
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (layout.label > 0) {
      draw_text(canvas, layout.gap, layout.top(r), layout.label, layout.heights[r], layout.text, rows[r].label);
    }
    for (std::size_t c = 0; c < rows[r].images.size(); ++c) {
      const at::Tensor& image = rows[r].images[c];
      if (!image.defined()) continue;
      const at::Tensor large =
          image.permute({1, 2, 0}).repeat_interleave(layout.zoom, 0).repeat_interleave(layout.zoom, 1);
      canvas.narrow(0, layout.top(r), large.size(0)).narrow(1, layout.left(c), large.size(1)).copy_(large);
    }
  }
  return canvas;
}

}  // namespace trainer::sampling
