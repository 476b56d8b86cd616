// Rules 20 to 26 of the reader: dtypes, sizes, spans; and files that must be accepted.
#include "corpus.hpp"

namespace trainer::weights::corpus {
namespace {

std::string two(uint64_t b1, uint64_t e1, uint64_t b2, uint64_t e2, std::size_t data_bytes) {
  const auto floats = [](uint64_t begin, uint64_t end) { return "[" + std::to_string((end - begin) / 4) + "]"; };
  return file("{" + entry("a", "F32", floats(b1, e1), b1, e1) + "," + entry("b", "F32", floats(b2, e2), b2, e2) + "}",
              data_bytes);
}

/// As the reference's "attack" test: many tensors over the same bytes.
std::string aliased(int count) {
  std::string json = "{";
  for (int i = 0; i < count; ++i)
    json += (i == 0 ? "" : ",") + entry("weight_" + std::to_string(i), "F32", "[2,2]", 0, 16);
  return file(json + "}", 16);
}

std::vector<Case> type_cases() {
  return {
      {"unknown dtype", one("[2]", "[0,8]", "\"F31\""), "ST_DTYPE",
       "tensor \"a\": unknown dtype \"F31\"; known are BOOL, F4, "},
      {"lower case", one("[2]", "[0,8]", "\"f32\""), "ST_DTYPE", "unknown dtype \"f32\""},
      {"torch's name", one("[2]", "[0,8]", "\"torch.float32\""), "ST_DTYPE", "unknown dtype \"torch.float32\""},
      {"empty dtype", one("[2]", "[0,8]", "\"\""), "ST_DTYPE", "unknown dtype \"\""},
      {"C128", one("[1]", "[0,16]", "\"C128\"", 16), "ST_DTYPE", "unknown dtype \"C128\""},
      {"dimension 2^63", one("[9223372036854775808]"), "ST_DIM",
       "\"shape\" holds the number 9223372036854775808; the limit"},
      {"dimension 2^64-2", one("[2,18446744073709551614]"), "ST_DIM", "the limit is 2^63 - 1"},
      {"dimension 2^64", one("[18446744073709551616]"), "ST_DIM", "the limit is 2^63 - 1"},
      {"the reference's zero after an overflow", one("[9223372036854775808,2,0]", "[0,0]", "\"U8\"", 0), "ST_DIM",
       "the limit"},
  };
}

std::vector<Case> size_cases() {
  return {
      {"elements overflow", one("[4294967296,4294967296]"), "ST_OVERFLOW",
       "F32 [4294967296, 4294967296] has sides that multiply to over 2^63 - 1 elements"},
      {"bits overflow", one("[2,9223372036854775807]"), "ST_OVERFLOW", "multiply to over 2^63 - 1 elements"},
      {"overflow before a zero", one("[4611686018427387904,4,0]", "[0,0]", "\"U8\"", 0), "ST_OVERFLOW",
       "multiply to over 2^63 - 1 elements"},
      {"half an overflow before a zero", one("[4611686018427387904,2,0]", "[0,0]", "\"F32\"", 0), "ST_OVERFLOW",
       "F32 [4611686018427387904, 2, 0] has sides that multiply to over 2^63 - 1 elements"},
      {"zero before an overflow", one("[0,9223372036854775807,2]", "[0,0]", "\"U8\"", 0), "ST_OVERFLOW",
       "multiply to over 2^63 - 1 elements"},
      {"overflow behind a zero", one("[0,4611686018427387904,4611686018427387904]", "[0,0]", "\"F32\"", 0),
       "ST_OVERFLOW", "multiply to over 2^63 - 1 elements"},
      {"wraps to the right size", one("[4611686018427387904,4,2]"), "ST_OVERFLOW",
       "multiply to over 2^63 - 1 elements"},
      {"wraps in bytes", one("[4611686018427387906]"), "ST_OVERFLOW", "multiply to over 2^63 - 1 elements"},
      {"half a byte", one("[1]", "[0,1]", "\"F4\"", 1), "ST_SUBBYTE", "tensor \"a\": F4 [1] does not fill whole bytes"},
      {"F4 odd", one("[3,5]", "[0,8]", "\"F4\""), "ST_SUBBYTE", "F4 [3, 5] does not fill"},
      {"F6 of two", one("[2]", "[0,2]", "\"F6_E2M3\"", 2), "ST_SUBBYTE", "F6_E2M3 [2] does not fill"},
      {"F6 of six", one("[6]", "[0,5]", "\"F6_E3M2\"", 5), "ST_SUBBYTE", "F6_E3M2 [6] does not fill"},
      {"span too long", one("[1]"), "ST_SIZE_MISMATCH",
       "tensor \"a\": F32 [1] needs 4 bytes, data_offsets [0, 8] hold 8"},
      {"span too short", one("[3]"), "ST_SIZE_MISMATCH", "F32 [3] needs 12 bytes, data_offsets [0, 8] hold 8"},
      {"end before begin", one("[2]", "[8,0]"), "ST_SIZE_MISMATCH", "data_offsets [8, 0] hold none"},
      {"empty shape is one element", one("[]"), "ST_SIZE_MISMATCH", "F32 [] needs 4 bytes"},
      {"empty tensor with bytes", one("[0]"), "ST_SIZE_MISMATCH", "F32 [0] needs 0 bytes, data_offsets [0, 8] hold 8"},
      {"dtype of another size", one("[2]", "[0,8]", "\"BF16\""), "ST_SIZE_MISMATCH", "BF16 [2] needs 4 bytes"},
  };
}

std::vector<Case> span_cases() {
  return {
      {"overlap by one element", two(0, 8, 4, 12, 12), "ST_OVERLAP",
       "tensor \"b\" begins at 4, but tensor \"a\" ends at 8: they overlap"},
      {"same span twice", two(0, 8, 0, 8, 8), "ST_OVERLAP", "tensor \"b\" begins at 0, but tensor \"a\" ends at 8"},
      {"one inside another", two(0, 16, 4, 8, 16), "ST_OVERLAP",
       "tensor \"b\" begins at 4, but tensor \"a\" ends at 16"},
      {"tied weights in compat", two(0, 8, 0, 8, 8), "ST_OVERLAP", "they overlap", kCompat},
      {"many over the same bytes", aliased(1000), "ST_OVERLAP", "tensor \"weight_1\" begins at 0"},
      {"empty tensor inside another",
       file("{" + entry("a", "F32", "[2]", 0, 8) + "," + entry("z", "F32", "[0]", 4, 4) + "}", 8), "ST_OVERLAP",
       "tensor \"z\" begins at 4"},
      {"gap at the start", one("[2]", "[4,12]", "\"F32\"", 12), "ST_GAP",
       "tensor \"a\" begins at 4, but the data begins at 0: a gap"},
      {"gap between", two(0, 4, 8, 12, 12), "ST_GAP", "tensor \"b\" begins at 8, but tensor \"a\" ends at 4: a gap"},
      {"gap in front of an empty tensor",
       file("{" + entry("a", "F32", "[1]", 0, 4) + "," + entry("z", "F32", "[0]", 8, 8) + "}", 8), "ST_GAP",
       "tensor \"z\" begins at 8"},
      {"gap in compat", two(0, 4, 8, 12, 12), "ST_GAP", "a gap", kCompat},
  };
}

std::vector<Case> accepted_types() {
  std::vector<Case> cases;
  for (const auto& [dtype, elements] :
       {std::pair{"BOOL", 8}, {"F4", 16},     {"U8", 8},          {"I8", 8},          {"F8_E5M2", 8},
        {"F8_E4M3", 8},       {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 4},
        {"U16", 4},           {"F16", 4},     {"BF16", 4},        {"I32", 2},         {"U32", 2},
        {"F32", 2},           {"C64", 1},     {"F64", 1},         {"I64", 1},         {"U64", 1}}) {
    cases.push_back({std::string("dtype ") + dtype,
                     one("[" + std::to_string(elements) + "]", "[0,8]", "\"" + std::string(dtype) + "\""), "", "a"});
  }
  cases.push_back({"dtype F6_E2M3", one("[4]", "[0,3]", "\"F6_E2M3\"", 3), "", "a"});
  cases.push_back({"dtype F6_E3M2", one("[2,4]", "[0,6]", "\"F6_E3M2\"", 6), "", "a"});
  return cases;
}

}  // namespace

const std::vector<Case>& tensor_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all = type_cases();
    for (auto&& more : {size_cases(), span_cases()}) all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return cases;
}

std::vector<Case> accepted_cases() {
  const std::string field = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":{\"y\":[1.5,null]}}}";
  std::vector<Case> cases = {
      {"no tensors", file("{}"), "", ""},
      {"no tensors, padded", file("{}      "), "", ""},
      {"one tensor", file(kGood, 8), "", "a"},
      {"padded with spaces", file(kGood + "   ", 8), "", "a"},
      {"rank 0", one("[]", "[0,4]", "\"F32\"", 4), "", "a"},
      {"64 dimensions",
       one(
           "[1" +
               [] {
                 std::string ones;
                 for (int i = 0; i < 63; ++i) ones += ",1";
                 return ones;
               }() +
               "]",
           "[0,4]", "\"F32\"", 4),
       "", "a"},
      {"empty tensor", one("[0]", "[0,0]", "\"F32\"", 0), "", "a"},
      {"empty tensor of a huge shape", one("[9223372036854775807,0]", "[0,0]", "\"U8\"", 0), "", "a"},
      {"order of the data, not of the header", two(8, 16, 0, 8, 16), "", "b,a"},
      {"empty tensors at every boundary",
       file("{" + entry("z2", "F32", "[0,7]", 8, 8) + "," + entry("a", "F32", "[2]", 0, 8) + "," +
                entry("z1", "F32", "[0]", 0, 0) + "}",
            8),
       "", "z1,a,z2"},
      {"unaligned spans", file("{" + entry("a", "U8", "[3]", 0, 3) + "," + entry("b", "F32", "[2]", 3, 11) + "}", 11),
       "", "a,b"},
      {"unaligned header", file(kGood + " ", 8), "", "a"},
      {"white space inside", file("{ \"a\" :\n{\"dtype\":\t\"F32\", \"shape\" : [ 2 ], \"data_offsets\":[0, 8] } }", 8),
       "", "a"},
      {"fields in another order", file("{\"a\":{\"data_offsets\":[0,8],\"shape\":[2],\"dtype\":\"F32\"}}", 8), "", "a"},
      {"metadata last", file("{" + entry("a", "F32", "[2]", 0, 8) + ",\"__metadata__\":{\"format\":\"pt\"}}", 8), "",
       "a"},
      {"empty metadata", file("{\"__metadata__\":{}}"), "", ""},
      {"Unicode name", file("{" + entry("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "F32", "[2]", 0, 8) + "}", 8), "",
       "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"},
      {"escaped name", file("{" + entry("\\u00e9\\ud83d\\ude00\\/\\\\", "F32", "[2]", 0, 8) + "}", 8), "",
       "\xC3\xA9\xF0\x9F\x98\x80/\\"},
      {"longest name", file("{" + entry(std::string(4096, 'n'), "F32", "[2]", 0, 8) + "}", 8), "",
       std::string(4096, 'n')},
      {"a name like a field", file("{" + entry("dtype", "F32", "[2]", 0, 8) + "}", 8), "", "dtype"},
      {"leading white space, compat", file("\n\t " + kGood, 8), "", "a", kCompat},
      {"trailing white space, compat", file(kGood + "\r\n\t ", 8), "", "a", kCompat},
      {"null metadata, compat", file("{\"__metadata__\":null," + kGood.substr(1), 8), "", "a", kCompat},
      {"unknown field, compat", file(field, 8), "", "a", kCompat},
  };
  const std::vector<Case> types = accepted_types();
  cases.insert(cases.end(), types.begin(), types.end());
  return cases;
}

}  // namespace trainer::weights::corpus
