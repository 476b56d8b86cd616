// Bytes as metadata.jsonl ("{" first) or metadata.csv.
#include <data/metadata.hpp>

#include "target.hpp"

namespace {

using namespace trainer;

void parse(std::string_view bytes) {
  const bool csv = !bytes.starts_with('{');
  std::size_t line = 0;
  for (const data::MetadataRow& row :
       data::parse_metadata(bytes, csv ? data::MetadataForm::csv : data::MetadataForm::jsonl)) {
    fuzz::require(row.line > line, "rows come in the order of their lines");
    line = row.line;
    fuzz::require(!row.problem.empty() || !row.image.empty(), "a row without problem names a picture");
  }
}

}  // namespace
TRAINER_FUZZ_TARGET("metadata", parse);
