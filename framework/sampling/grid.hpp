/// @file Puts sampled pictures into one labelled picture: a row for each prompt, a column for each state of the model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::sampling {

struct GridRow {
  std::string label;               ///< UTF-8, written at the left, wrapped; what is not ASCII is drawn as a box
  std::vector<at::Tensor> images;  ///< uint8 [3, H, W] on the CPU; an undefined tensor leaves its place empty
};

/// The grid as uint8 [H, W, 3], contiguous (what PNG writers take). Row and column sizes follow the largest picture in
/// them. Pictures narrower than 128 pixels are enlarged by a whole factor, pixels repeated, so that miniatures can be
/// seen. `columns` are the titles at the top, one a column; empty: no title row.
/// Throws Error (failed) for another shape or dtype, more images in a row than titles, or no image at all.
at::Tensor make_grid(std::span<const GridRow> rows, std::span<const std::string> columns);

/// `text` in lines of at most `width` characters, broken between words where possible; at most `lines` lines, the last
/// one ending in "..." when something is left out.
std::vector<std::string> wrap_text(std::string_view text, int64_t width, int64_t lines);

}  // namespace trainer::sampling
