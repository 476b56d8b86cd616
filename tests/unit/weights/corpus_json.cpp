// Rules 12 to 19 of the reader: JSON structure, duplicates, integers, metadata, entry fields, names.
#include "corpus.hpp"

namespace trainer::weights::corpus {
namespace {

std::string with_field(const std::string& field) {
  return file("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]," + field + "}}", 8);
}

std::vector<Case> shape_cases() {
  return {
      {"tensor is a number", file("{\"a\":1}"), "ST_JSON_SHAPE",
       "tensor \"a\": its entry must be an object, it is the number 1"},
      {"tensor is a list", file("{\"a\":[]}"), "ST_JSON_SHAPE",
       "tensor \"a\": its entry must be an object, it is a list"},
      {"tensor is null", file("{\"a\":null}"), "ST_JSON_SHAPE", "it is null"},
      {"tensor is a string", file("{\"a\":\"F32\"}"), "ST_JSON_SHAPE", "it is the string \"F32\""},
      {"dtype is a list", one("[2]", "[0,8]", "[\"F32\"]"), "ST_JSON_SHAPE",
       "\"dtype\" must be a string, it is a list"},
      {"dtype is null", one("[2]", "[0,8]", "null"), "ST_JSON_SHAPE", "\"dtype\" must be a string, it is null"},
      {"shape is a number", one("2"), "ST_JSON_SHAPE", "\"shape\" must be a list, it is the number 2"},
      {"shape is an object", one("{}"), "ST_JSON_SHAPE", "\"shape\" must be a list, it is an object"},
      {"shape holds a list", one("[[2]]"), "ST_JSON_SHAPE", "\"shape\" holds a list, not numbers"},
      {"shape holds a string", one("[\"2\"]"), "ST_JSON_SHAPE", "\"shape\" holds the string \"2\", not a number"},
      {"shape holds true", one("[true]"), "ST_JSON_SHAPE", "\"shape\" holds true"},
      {"offsets are an object", one("[2]", "{\"begin\":0,\"end\":8}"), "ST_JSON_SHAPE",
       "\"data_offsets\" must be a list"},
      {"offsets are a string", one("[2]", "\"0,8\""), "ST_JSON_SHAPE",
       "\"data_offsets\" must be a list, it is the string \"0,8\""},
      {"offsets hold null", one("[2]", "[0,null]"), "ST_JSON_SHAPE", "\"data_offsets\" holds null"},
      {"no closing brace", file("{\"a\":{}"), "ST_ENTRY_FIELD", "tensor \"a\": \"dtype\" is missing"},
      {"cut JSON", file("{\"a\":{\"dtype\":\"F3"), "ST_JSON_SYNTAX", "the header is not JSON at byte"},
      {"comment", file("{/* */}"), "ST_JSON_SYNTAX", "not JSON at byte 2"},
      {"single quotes", file("{'a':{}}"), "ST_JSON_SYNTAX", "not JSON at byte 2"},
      {"trailing comma", file("{" + entry("a", "F32", "[2]", 0, 8) + ",}", 8), "ST_JSON_SYNTAX", "not JSON at byte"},
      {"Python literals", file("{\"a\":None}"), "ST_JSON_SYNTAX", "not JSON at byte"},
      {"raw newline in a name", file("{\"a\nb\":{}}"), "ST_JSON_SYNTAX", "not JSON at byte"},
      {"random bytes", file("{\x01\x02\x03\x04}"), "ST_JSON_SYNTAX", "not JSON at byte 2"},
      {"too deep", with_field("\"x\":[[[1]]]"), "ST_JSON_DEPTH", "nests deeper than 4", kCompat},
      {"too deep in objects", with_field("\"x\":{\"y\":{\"z\":{}}}"), "ST_JSON_DEPTH", "nests deeper than 4", kCompat},
      {"a million brackets", with_field("\"x\":" + std::string(1'000'000, '[')), "ST_JSON_DEPTH", "nests deeper",
       kCompat},
  };
}

std::vector<Case> duplicate_cases() {
  const std::string a = entry("a", "F32", "[2]", 0, 8);
  return {
      {"same tensor, same span", file("{" + a + "," + a + "}", 8), "ST_DUP_KEY", "tensor \"a\" appears twice"},
      {"same tensor, other span", file("{" + a + "," + entry("a", "F32", "[2]", 8, 16) + "}", 16), "ST_DUP_KEY",
       "tensor \"a\""},
      {"same after unescaping", file("{" + a + "," + entry("\\u0061", "F32", "[2]", 0, 8) + "}", 8), "ST_DUP_KEY",
       "tensor \"a\""},
      {"empty twice", file("{" + entry("z", "F32", "[0]", 0, 0) + "," + entry("z", "F32", "[0]", 0, 0) + "}"),
       "ST_DUP_KEY", "\"z\""},
      {"in compat", file("{" + a + "," + a + "}", 8), "ST_DUP_KEY", "tensor \"a\" appears twice", kCompat},
      {"dtype twice", with_field("\"dtype\":\"F32\""), "ST_DUP_KEY", "tensor \"a\": the key \"dtype\" appears twice"},
      {"shape twice", with_field("\"sh\\u0061pe\":[2]"), "ST_DUP_KEY", "the key \"shape\" appears twice"},
      {"data_offsets twice", with_field("\"data_offsets\":[0,8]"), "ST_DUP_KEY",
       "the key \"data_offsets\" appears twice"},
      {"metadata twice", file("{\"__metadata__\":{},\"__metadata__\":{}}"), "ST_DUP_KEY",
       "\"__metadata__\" appears twice"},
      {"metadata escaped", file("{\"__metadata__\":{},\"\\u005f_metadata__\":{}}"), "ST_DUP_KEY",
       "\"__metadata__\" appears twice"},
      {"metadata key twice", file("{\"__metadata__\":{\"k\":\"1\",\"\\u006b\":\"2\"}}"), "ST_DUP_KEY",
       "metadata \"k\" appears twice"},
      {"unknown field twice", with_field("\"x\":1,\"x\":1"), "ST_DUP_KEY", "the key \"x\" appears twice", kCompat},
      {"inside an unknown field", with_field("\"x\":{\"y\":1,\"y\":1}"), "ST_DUP_KEY", "the key \"y\" appears twice",
       kCompat},
  };
}

std::vector<Case> integer_cases() {
  return {
      {"negative", one("[-2]"), "ST_INT", "\"shape\" holds the number -2; only digits are allowed"},
      {"minus zero", one("[2]", "[-0,8]"), "ST_INT", "\"data_offsets\" holds the number -0"},
      {"fraction", one("[2.0]"), "ST_INT", "the number 2.0"},
      {"exponent", one("[2]", "[0,8e0]"), "ST_INT", "the number 8e0"},
      {"leading zero", one("[02]"), "ST_INT", "malformed number"},
      {"leading zero in offsets", one("[2]", "[00,8]"), "ST_INT", "malformed number"},
      {"plus", one("[+2]"), "ST_INT", "malformed number"},
      {"hexadecimal", one("[0x2]"), "ST_INT", "malformed number"},
      {"bare minus", one("[-]"), "ST_INT", "malformed number"},
      {"bare exponent", one("[2e]"), "ST_INT", "malformed number"},
      {"too large to be a double", one("[1e999]"), "ST_INT", "malformed number"},
      {"offset 2^63", one("[2]", "[0,9223372036854775808]"), "ST_INT",
       "the number 9223372036854775808; the limit is 2^63 - 1"},
      {"offset 2^64", one("[2]", "[0,18446744073709551616]"), "ST_INT", "the limit is 2^63 - 1"},
      {"two offsets that wrap", one("[2]", "[18446744073709551608,0]"), "ST_INT", "the limit is 2^63 - 1"},
  };
}

std::vector<Case> metadata_cases() {
  const auto metadata = [](const std::string& json) { return file("{\"__metadata__\":" + json + "}"); };
  return {
      {"null in strict", metadata("null"), "ST_METADATA_TYPE", "\"__metadata__\" must be an object, it is null"},
      {"a list", metadata("[]"), "ST_METADATA_TYPE", "\"__metadata__\" must be an object, it is a list"},
      {"a string", metadata("\"pt\""), "ST_METADATA_TYPE", "it is the string \"pt\""},
      {"a number value", metadata("{\"rank\":16}"), "ST_METADATA_TYPE",
       "metadata \"rank\" must be a string, it is the number 16"},
      {"a null value", metadata("{\"rank\":null}"), "ST_METADATA_TYPE",
       "metadata \"rank\" must be a string, it is null"},
      {"an object value", metadata("{\"config\":{}}"), "ST_METADATA_TYPE",
       "metadata \"config\" must be a string, it is an object"},
      {"a list value in compat", metadata("{\"tags\":[]}"), "ST_METADATA_TYPE", "must be a string, it is a list",
       kCompat},
      {"a boolean in compat", metadata("true"), "ST_METADATA_TYPE", "it is true", kCompat},
  };
}

std::vector<Case> entry_cases() {
  const auto of = [](const std::string& fields) { return file("{\"a\":{" + fields + "}}", 8); };
  std::string ranks = "[1";
  for (int i = 0; i < 64; ++i) ranks += ",1";
  return {
      {"unknown field", with_field("\"strides\":[1]"), "ST_ENTRY_FIELD", "tensor \"a\": unknown field \"strides\""},
      {"no dtype", of("\"shape\":[2],\"data_offsets\":[0,8]"), "ST_ENTRY_FIELD", "\"dtype\" is missing"},
      {"no shape", of("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), "ST_ENTRY_FIELD", "\"shape\" is missing"},
      {"no offsets", of("\"dtype\":\"F32\",\"shape\":[2]"), "ST_ENTRY_FIELD", "\"data_offsets\" is missing"},
      {"other capitals", of("\"DType\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), "ST_ENTRY_FIELD",
       "unknown field \"DType\""},
      {"no offsets in compat", of("\"dtype\":\"F32\",\"shape\":[2],\"offsets\":[0,8]"), "ST_ENTRY_FIELD",
       "\"data_offsets\" is missing", kCompat},
      {"one offset", one("[2]", "[8]"), "ST_OFFSETS", "\"data_offsets\" has 1 numbers; it needs 2"},
      {"no offset", one("[2]", "[]"), "ST_OFFSETS", "\"data_offsets\" has 0 numbers"},
      {"three offsets", one("[2]", "[0,4,8]"), "ST_OFFSETS", "\"data_offsets\" has more than 2 numbers"},
      {"empty name", file("{" + entry("", "F32", "[2]", 0, 8) + "}", 8), "ST_NAME",
       "has 0 bytes; allowed are 1 to 4096"},
      {"long name", file("{" + entry(std::string(4097, 'n'), "F32", "[2]", 0, 8) + "}", 8), "ST_NAME",
       "has 4097 bytes"},
      {"NUL in a name", file("{" + entry("a\\u0000b", "F32", "[2]", 0, 8) + "}", 8), "ST_NAME",
       "\"a\\x00b\" holds a control character"},
      {"newline in a name", file("{" + entry("a\\nb", "F32", "[2]", 0, 8) + "}", 8), "ST_NAME",
       "\"a\\x0ab\" holds a control"},
      {"escape sequence for a terminal", file("{" + entry("\\u001b[2J", "F32", "[2]", 0, 8) + "}", 8), "ST_NAME",
       "\"\\x1b[2J\""},
      {"delete", file("{" + entry("a\x7F", "F32", "[2]", 0, 8) + "}", 8), "ST_NAME", "holds a control character"},
      {"65 dimensions", one(ranks + "]", "[0,4]", "\"F32\"", 4), "ST_RANK", "tensor \"a\": more than 64 dimensions"},
      {"65 dimensions of 0",
       one("[" +
               std::string("0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,"
                           "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0") +
               "]",
           "[0,0]", "\"F32\"", 0),
       "ST_RANK", "more than 64 dimensions"},
      {"a hundred thousand dimensions",
       one("[1" + std::string(99'999 * 2, ' ').replace(0, 2, ",1") +
               ",1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
               "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
           "[0,4]", "\"F32\"", 4),
       "ST_RANK", "more than 64 dimensions"},
  };
}

}  // namespace

const std::vector<Case>& json_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all = shape_cases();
    for (auto&& more : {duplicate_cases(), integer_cases(), metadata_cases(), entry_cases()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return cases;
}

}  // namespace trainer::weights::corpus
