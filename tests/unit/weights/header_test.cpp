#include <gtest/gtest.h>
#include <trainer/sdk/error.hpp>

#include <chrono>
#include <map>
#include <set>

#include "corpus.hpp"

namespace trainer::weights {
namespace {

using corpus::Case;

/// The code and message of the refusal, or the names of the accepted file.
std::pair<std::string, std::string> outcome(const Case& example) {
  try {
    const Header header = parse_header(example.bytes, example.bytes.size(), "x.safetensors", example.profile);
    std::string names;
    for (const TensorEntry& entry : header.entries) names += (names.empty() ? "" : ",") + entry.name;
    return {"", names};
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_input) << example.label;
    return {error.code(), error.what()};
  }
}

void expect_refused(const std::vector<Case>& cases) {
  for (const Case& example : cases) {
    const auto [code, message] = outcome(example);
    EXPECT_EQ(code, example.code) << example.label << ": " << message;
    EXPECT_NE(message.find(example.piece), std::string::npos) << example.label << ": " << message;
    EXPECT_EQ(message.rfind("x.safetensors: ", 0), 0u) << example.label << ": " << message;
  }
}

TEST(Header, RefusesBrokenFraming) { expect_refused(corpus::framing_cases()); }
TEST(Header, RefusesBrokenJson) { expect_refused(corpus::json_cases()); }
TEST(Header, RefusesBrokenTensors) { expect_refused(corpus::tensor_cases()); }
TEST(Header, RefusesTooMuch) { expect_refused(corpus::large_cases()); }

TEST(Header, AcceptsWhatTheFormatAllows) {
  for (const Case& example : corpus::accepted_cases()) {
    const auto [code, names] = outcome(example);
    EXPECT_EQ(code, "") << example.label << ": " << names;
    EXPECT_EQ(names, example.piece) << example.label;
  }
}

TEST(Header, EveryRuleHasThreeExamples) {
  std::map<std::string, int> examples;
  int refused = 0;
  for (const auto* cases :
       {&corpus::framing_cases(), &corpus::json_cases(), &corpus::tensor_cases(), &corpus::large_cases()}) {
    for (const Case& example : *cases) ++examples[example.code], ++refused;
  }
  for (const char* code : {"ST_TOO_SHORT",
                           "ST_HEADER_LEN",
                           "ST_HEADER_TOO_LARGE",
                           "ST_TRUNCATED_HEADER",
                           "ST_HEADER_START",
                           "ST_HEADER_TRAILING",
                           "ST_UTF8",
                           "ST_TRAILING_BYTES",
                           "ST_TRUNCATED_DATA",
                           "ST_JSON_SHAPE",
                           "ST_JSON_DEPTH",
                           "ST_JSON_SYNTAX",
                           "ST_DUP_KEY",
                           "ST_INT",
                           "ST_METADATA_TYPE",
                           "ST_LIMIT",
                           "ST_TOO_MANY",
                           "ST_ENTRY_FIELD",
                           "ST_OFFSETS",
                           "ST_NAME",
                           "ST_DTYPE",
                           "ST_RANK",
                           "ST_DIM",
                           "ST_OVERFLOW",
                           "ST_SUBBYTE",
                           "ST_SIZE_MISMATCH",
                           "ST_OVERLAP",
                           "ST_GAP"}) {
    EXPECT_GE(examples[code], 3) << code;
  }
  EXPECT_GE(refused, 120);
  EXPECT_GE(corpus::accepted_cases().size(), 30u);
}

TEST(Header, StrictRefusesWhatOnlyCompatAccepts) {
  for (Case example : corpus::accepted_cases()) {
    if (example.profile != Profile::compat) continue;
    example.profile = Profile::strict;
    EXPECT_NE(outcome(example).first, "") << example.label;
  }
}

TEST(Header, CompatAcceptsAllThatStrictAccepts) {
  for (Case example : corpus::accepted_cases()) {
    example.profile = Profile::compat;
    EXPECT_EQ(outcome(example), std::pair(std::string(), example.piece)) << example.label;
  }
}

TEST(Header, NeedsEightBytesAndTheWholeHeader) {
  const auto code_of = [](std::string_view prefix, uint64_t file_size) {
    try {
      header_length(prefix, file_size, "x");
    } catch (const Error& error) {
      return error.code();
    }
    return std::string();
  };
  const std::string bytes = corpus::file("{}");
  EXPECT_EQ(code_of(bytes, bytes.size()), "");
  EXPECT_EQ(code_of(bytes.substr(0, 7), bytes.size()), "ST_TOO_SHORT") << "the file grew since";
  EXPECT_EQ(code_of(bytes, 7), "ST_TOO_SHORT") << "the file shrank since";
  try {
    parse_header(bytes.substr(0, bytes.size() - 1), bytes.size(), "x");
    ADD_FAILURE() << "a header that is not all there was parsed";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::failed);
    EXPECT_STREQ(error.what(), "x: parse_header was given too few bytes");
  }
}

TEST(Header, GivesEntriesAndMetadata) {
  const std::string bytes =
      corpus::file("{\"__metadata__\":{\"format\":\"pt\",\"n\\u006fte\":\"a\\nb\"}," +
                       corpus::entry("b", "BF16", "[2,3]", 4, 16) + "," + corpus::entry("a", "F32", "[]", 0, 4) + "}  ",
                   16);
  const Header header = parse_header(bytes, bytes.size(), "x");
  ASSERT_EQ(header.entries.size(), 2u);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[1].dtype, Dtype::bf16);
  EXPECT_EQ(header.entries[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.entries[1].begin, 4u);
  EXPECT_EQ(header.entries[1].end, 16u);
  EXPECT_EQ(header.data_offset, bytes.size() - 16);
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"note", "a\nb"}}));
  EXPECT_EQ(header.find("b"), &header.entries[1]);
  EXPECT_EQ(header.find("c"), nullptr);
  EXPECT_TRUE(header.warnings.empty());
}

TEST(Header, CompatWarnsOncePerFile) {
  const std::string field = ",\"x\":1}";
  std::string a = corpus::entry("a", "U8", "[1]", 0, 1), b = corpus::entry("b", "U8", "[1]", 1, 2);
  a.replace(a.size() - 1, 1, field), b.replace(b.size() - 1, 1, field);
  const std::string bytes = corpus::file("{" + a + "," + b + "}", 2);
  const Header header = parse_header(bytes, bytes.size(), "x", Profile::compat);
  ASSERT_EQ(header.warnings.size(), 1u);
  EXPECT_EQ(header.warnings[0], "x: 2 tensors have fields other than dtype, shape and data_offsets; they are ignored");
}

/// Any prefix of a good file, and any single flipped byte of its header, is refused or still a file that holds
/// together.
TEST(Header, SurvivesEveryCutAndFlip) {
  const std::string good = corpus::file(
      "{" + corpus::entry("a", "F32", "[2]", 0, 8) + "," + corpus::entry("b", "I64", "[1]", 8, 16) + "}", 16);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_NE(outcome({"cut", good.substr(0, size), "", ""}).first, "") << size;
  }
  const std::set<std::string> known = [] {
    std::set<std::string> codes{""};
    for (const auto* cases : {&corpus::framing_cases(), &corpus::json_cases(), &corpus::tensor_cases()}) {
      for (const Case& example : *cases) codes.insert(example.code);
    }
    return codes;
  }();
  for (std::size_t at = 0; at < good.size() - 16; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = good;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      for (const Profile profile : {Profile::strict, Profile::compat}) {
        EXPECT_TRUE(known.contains(outcome({"flip", flipped, "", "", profile}).first)) << at << "." << bit;
      }
    }
  }
}

}  // namespace
}  // namespace trainer::weights
