/// @file Our reader and the reference implementation agree on the corpus, except for rules that are stricter on
/// purpose. What the reference says is recorded in tests/data/safetensors/verdicts.txt.
#include <base/hash.hpp>

#include <map>
#include <set>
#include <sstream>

#include "corpus.hpp"
#include "helpers.hpp"

namespace trainer::weights {
namespace {

/// Rules that the reference does not have, and what it does instead.
const std::set<std::string> kStricter{
    "ST_DUP_KEY",          // the last of two equal keys wins there
    "ST_ENTRY_FIELD",      // unknown fields are ignored
    "ST_HEADER_START",     // white space in front
    "ST_HEADER_TRAILING",  // other white space than spaces behind
    "ST_JSON_DEPTH",       // 128 levels
    "ST_LIMIT",            // no limit on metadata
    "ST_METADATA_TYPE",    // null counts as absent
    "ST_NAME",             // any name
    "ST_OVERFLOW",         // counts nothing behind a zero
    "ST_RANK",             // any rank
    "ST_TOO_MANY",         // any number of tensors
};

std::map<std::string, bool> verdicts() {
  std::map<std::string, bool> accepted;
  std::istringstream lines(bytes_of(data_file("safetensors/verdicts.txt")));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string content, said;
    words >> content >> said;
    EXPECT_TRUE(said == "accepted" || said == "refused") << line;
    accepted[content] = said == "accepted";
  }
  return accepted;
}

TEST(ReferenceVerdicts, AgreeButForRulesThatAreStricter) {
  const std::map<std::string, bool> recorded = verdicts();
  std::map<std::string, int> stricter;
  int agreed = 0;
  for (const corpus::Case& example : corpus::all_cases()) {
    const auto found = recorded.find(xxh128(example.bytes));
    ASSERT_NE(found, recorded.end()) << example.label << ": run tests/data/safetensors/make_verdicts.py again";
    if (found->second == example.code.empty()) {
      ++agreed;
      continue;
    }
    EXPECT_TRUE(found->second) << example.label << ": we accept what the reference refuses";
    EXPECT_TRUE(kStricter.contains(example.code))
        << example.label << ": the reference accepts it, we say " << example.code;
    ++stricter[example.code];
  }
  EXPECT_EQ(stricter.size(), kStricter.size()) << "a rule that is listed as stricter is not";
  EXPECT_GE(agreed, 150);
}

}  // namespace
}  // namespace trainer::weights
