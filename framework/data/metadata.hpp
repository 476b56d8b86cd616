/// @file Metadata files: a .jsonl (one object a line) or .csv (RFC 4180, with a header line) that names pictures and
/// captions. Columns as the peers write them: image, file_name, image_path or path; caption, prompt or text; the first
/// of a list that is present counts, others are ignored.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::data {

struct MetadataRow {
  std::size_t line = 0;                ///< where the row begins, from 1
  std::string image;                   ///< as written
  std::optional<std::string> caption;  ///< as written; absent: no such column, or null
  std::string problem;                 ///< not empty: the row cannot be used, for this reason
};

/// Rows in file order; blank lines are skipped. Throws Error: not_found, io,
/// bad_input for what spoils the whole file (extension, size, over a million rows, not UTF-8, a csv without a column
/// for the pictures or with a record of over 1 MiB).
std::vector<MetadataRow> read_metadata(const std::filesystem::path& file);

enum class MetadataForm { jsonl, csv };

inline constexpr std::size_t kMostRows = 1'000'000;

/// The same from the content of a file; errors do not name it.
std::vector<MetadataRow> parse_metadata(std::string_view bytes, MetadataForm form, std::size_t most_rows = kMostRows);

}  // namespace trainer::data
