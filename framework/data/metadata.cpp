#include <data/metadata.hpp>

#include <base/files.hpp>
#include <base/utf8.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>

namespace trainer::data {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;
constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;
constexpr int kMaxDepth = 32;
constexpr std::array kImageColumns = {"image", "file_name", "image_path", "path"};
constexpr std::array kCaptionColumns = {"caption", "prompt", "text"};

std::string joined(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + quote_name(name);
  return text;
}

/// Refuses what a document tree would hide: deep nesting, and of two equal keys the first.
nlohmann::json parse_line(std::string_view line) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > kMaxDepth) throw Error(ExitCode::bad_input, "is nested too deeply");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw Error(ExitCode::bad_input, "has the key " + quote_name(parsed.get<std::string>()) + " twice");
    }
    return true;
  };
  try {
    return nlohmann::json::parse(line.begin(), line.end(), check);
  } catch (const nlohmann::json::parse_error& error) {
    throw Error(ExitCode::bad_input, "is not valid JSON (character " + std::to_string(error.byte) + ")");
  } catch (const nlohmann::json::exception&) {
    throw Error(ExitCode::bad_input, "has a number that is out of range");
  }
}

void read_object(std::string_view line, MetadataRow& row) {
  const nlohmann::json object = parse_line(line);
  if (!object.is_object()) throw Error(ExitCode::bad_input, "is not an object {...}");
  const auto first_of = [&](std::span<const char* const> names) {
    for (const char* name : names) {
      if (const auto it = object.find(name); it != object.end() && !it->is_null()) return it;
    }
    return object.end();
  };
  const auto image = first_of(kImageColumns);
  if (image == object.end())
    throw Error(ExitCode::bad_input, "names no picture (key \"image\", \"file_name\", \"image_path\" or \"path\")");
  if (!image->is_string()) throw Error(ExitCode::bad_input, "\"" + image.key() + "\" is not a string");
  row.image = image->get<std::string>();
  if (row.image.empty()) throw Error(ExitCode::bad_input, "names no picture (\"" + image.key() + "\" is empty)");
  const auto caption = first_of(kCaptionColumns);
  if (caption == object.end()) return;
  if (!caption->is_string()) throw Error(ExitCode::bad_input, "\"" + caption.key() + "\" is not a string");
  row.caption = caption->get<std::string>();
}

/// A row takes a hundred bytes even where its line takes two.
void add(std::vector<MetadataRow>& rows, MetadataRow&& row, std::size_t most) {
  if (rows.size() == most)
    throw Error(ExitCode::bad_input, "has more than " + std::to_string(most) +
                                         " rows; split it, and name the parts in [[data]] sections of their own");
  rows.push_back(std::move(row));
}

std::vector<MetadataRow> read_jsonl(std::string_view text, std::size_t most) {
  std::vector<MetadataRow> rows;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    MetadataRow row{number, {}, {}, {}};
    try {
      if (line.size() > kMaxLineBytes) throw Error(ExitCode::bad_input, "is longer than 1 MiB");
      read_object(line, row);
    } catch (const Error& error) {
      row.problem = error.what();
    }
    add(rows, std::move(row), most);
  }
  return rows;
}

/// Reads RFC 4180 records: fields in quotes may hold commas, line ends and doubled quotes.
class CsvReader {
 public:
  explicit CsvReader(std::string_view text) : text_(text) {}
  [[nodiscard]] bool done() const { return at_ >= text_.size(); }
  [[nodiscard]] std::size_t line() const { return line_; }
  /// Fields of the next record. Throws Error (bad_input) for a quote that is never closed, and a record of over 1 MiB.
  std::vector<std::string> next() {
    std::vector<std::string> fields(1);
    begin_ = at_;
    first_line_ = line_;
    while (at_ < text_.size()) {
      if (text_[at_] == '\n') return ++at_, ++line_, fields;
      const char character = take();
      if (character == '"' && fields.back().empty())
        quoted(fields.back());
      else if (character == ',')
        fields.emplace_back();
      else if (character != '\r' || (at_ < text_.size() && text_[at_] != '\n'))
        fields.back() += character;
    }
    return fields;
  }

 private:
  char take() {
    if (at_ - begin_ == kMaxLineBytes)
      throw Error(ExitCode::bad_input, "line " + std::to_string(first_line_) +
                                           ": a record is longer than 1 MiB; is a quote in it never closed?");
    return text_[at_++];
  }
  void quoted(std::string& field) {
    const std::size_t began = line_;
    while (at_ < text_.size()) {
      const char character = take();
      if (character == '\n') ++line_;
      if (character != '"') {
        field += character;
      } else if (at_ < text_.size() && text_[at_] == '"') {
        field += take();
      } else {
        return;
      }
    }
    throw Error(ExitCode::bad_input, "line " + std::to_string(began) + ": a quote is never closed");
  }
  std::string_view text_;
  std::size_t at_ = 0, line_ = 1, begin_ = 0, first_line_ = 1;  // the last two: of the record
};

/// Index of the first of `names` among the columns, or npos.
std::size_t column(std::span<const std::string> columns, std::span<const char* const> names) {
  for (const char* name : names) {
    const auto it = std::find(columns.begin(), columns.end(), name);
    if (it != columns.end()) return static_cast<std::size_t>(it - columns.begin());
  }
  return std::string::npos;
}

bool names_column(std::span<const char* const> names, const std::string& column) {
  return std::find(names.begin(), names.end(), column) != names.end();
}

std::vector<MetadataRow> read_csv(std::string_view text, std::size_t most) {
  CsvReader reader(text);
  const std::vector<std::string> columns = reader.next();
  const std::size_t image = column(columns, kImageColumns), caption = column(columns, kCaptionColumns);
  if (image == std::string::npos) {
    throw Error(ExitCode::bad_input,
                "no column for the pictures: the first line must name one of image, file_name, "
                "image_path, path; it has " +
                    joined(columns));
  }
  // As of equal keys in JSON, only one of two columns could be read, and nothing would tell which.
  for (std::size_t i = 0; i < columns.size(); ++i)
    if (const std::string& name = columns[i];
        (names_column(kImageColumns, name) || names_column(kCaptionColumns, name)) &&
        std::find(columns.begin(), columns.begin() + static_cast<std::ptrdiff_t>(i), name) !=
            columns.begin() + static_cast<std::ptrdiff_t>(i))
      throw Error(ExitCode::bad_input, "the first line names the column \"" + name + "\" twice");
  std::vector<MetadataRow> rows;
  while (!reader.done()) {
    MetadataRow row{reader.line(), {}, {}, {}};
    std::vector<std::string> fields = reader.next();
    if (fields.size() == 1 && fields[0].empty()) continue;
    if (fields.size() != columns.size()) {
      row.problem =
          "has " + std::to_string(fields.size()) + " fields, the first line has " + std::to_string(columns.size());
    } else {
      row.image = std::move(fields[image]);
      if (caption != std::string::npos) row.caption = std::move(fields[caption]);
      if (row.image.empty()) row.problem = "names no picture";
    }
    add(rows, std::move(row), most);
  }
  return rows;
}

}  // namespace

std::vector<MetadataRow> parse_metadata(std::string_view bytes, MetadataForm form, std::size_t most_rows) {
  std::string_view text = bytes;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (const std::size_t bad = invalid_utf8(text); bad != std::string_view::npos) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n');
    throw Error(ExitCode::bad_input, "is not UTF-8 in line " + std::to_string(line));
  }
  return form == MetadataForm::csv ? read_csv(text, most_rows) : read_jsonl(text, most_rows);
}

std::vector<MetadataRow> read_metadata(const std::filesystem::path& file) {
  const std::string extension = file.extension().string();
  if (extension != ".jsonl" && extension != ".csv") {
    throw Error(ExitCode::bad_input, "metadata " + file.string() + ": only .jsonl and .csv files are read");
  }
  const std::string bytes = read_file(file, kMaxFileBytes, "metadata");
  try {
    return parse_metadata(bytes, extension == ".csv" ? MetadataForm::csv : MetadataForm::jsonl);
  } catch (const Error& error) {
    throw error.context("metadata " + file.string());
  }
}

}  // namespace trainer::data
