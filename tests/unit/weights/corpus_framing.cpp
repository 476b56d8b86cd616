// Rules 2 to 9 of the reader: length field, first and last byte of the header, UTF-8, end of the file.
#include "corpus.hpp"

namespace trainer::weights::corpus {
namespace {

std::vector<Case> length_cases() {
  const std::string good = file(kGood, 8);
  return {
      {"empty file", "", "ST_TOO_SHORT", "it has 0 bytes; a header needs at least 8: interrupted download"},
      {"one byte", "{", "ST_TOO_SHORT", "it has 1 bytes"},
      {"seven bytes", std::string(7, '\0'), "ST_TOO_SHORT", "it has 7 bytes"},
      {"length 2^63", with_length(uint64_t{1} << 63, "{}"), "ST_HEADER_LEN", "claims 9223372036854775808 bytes"},
      {"length 2^64-1", with_length(UINT64_MAX, "{}"), "ST_HEADER_LEN", "claims 18446744073709551615 bytes"},
      {"length that wraps with the 8", with_length(UINT64_MAX - 7, "{}"), "ST_HEADER_LEN",
       "damaged or not a safetensors"},
      {"one over the limit", with_length(100'000'001, "{}"), "ST_HEADER_TOO_LARGE",
       "claims 100000001 bytes; the limit is 100000000"},
      {"2^63-1", with_length(INT64_MAX, "{}"), "ST_HEADER_TOO_LARGE", "claims 9223372036854775807"},
      {"Git LFS pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n",
       "ST_HEADER_TOO_LARGE", "this is a Git LFS pointer, not the file it points to: run `git lfs pull`"},
      {"web page", "<!DOCTYPE html><html><body>Sign in</body></html>", "ST_HEADER_TOO_LARGE", "this is a web page"},
      {"PyTorch zip", std::string("PK\x03\x04\x14\0\x08\x08", 8) + "archive/data.pkl", "ST_HEADER_TOO_LARGE",
       "PyTorch checkpoint"},
      {"GGUF", std::string("GGUF\x03\0\0\0", 8) + std::string(16, '\0'), "ST_HEADER_TOO_LARGE", "this is a GGUF file"},
      {"an index in place of a shard", "{\"metadata\": {\"total_size\": 1}}", "ST_HEADER_TOO_LARGE",
       "name the folder instead"},
      {"header cut by one", with_length(kGood.size(), kGood.substr(0, kGood.size() - 1)), "ST_TRUNCATED_HEADER",
       "claims 54 bytes, 53 follow: interrupted download or save; fetch it again"},
      {"only a length", with_length(16, ""), "ST_TRUNCATED_HEADER", "claims 16 bytes, 0 follow"},
      {"length of a large header", with_length(99'999'999, "{}"), "ST_TRUNCATED_HEADER",
       "claims 99999999 bytes, 2 follow"},
      {"cut in the data", good.substr(0, good.size() - 3), "ST_TRUNCATED_DATA",
       "3 bytes are missing (the header describes 8 bytes of data, the file has 5): interrupted download or save; "
       "fetch"},
      {"no data at all", file(kGood, 0), "ST_TRUNCATED_DATA", "8 bytes are missing"},
      {"data far beyond the file", one("[1099511627776]", "[0,4398046511104]"), "ST_TRUNCATED_DATA",
       "4398046511096 bytes are missing"},
      {"one byte too many", good + "x", "ST_TRAILING_BYTES",
       "1 bytes too many at the end (the header describes 8 bytes"},
      {"a zip at the end", good + "PK\x05\x06" + std::string(18, '\0'), "ST_TRAILING_BYTES", "22 bytes too many"},
      {"data without tensors", file("{}", 4), "ST_TRAILING_BYTES", "4 bytes too many"},
      {"trailing bytes in compat", good + "x", "ST_TRAILING_BYTES", "1 bytes too many", kCompat},
  };
}

std::vector<Case> edge_cases() {
  return {
      {"length 0", with_length(0, ""), "ST_HEADER_START", "must begin with '{'"},
      {"length 1", file("{"), "ST_HEADER_START", "must begin with '{'"},
      {"leading space", file(" " + kGood, 8), "ST_HEADER_START", "must begin with '{'"},
      {"leading newline", file("\n" + kGood, 8), "ST_HEADER_START", "must begin with '{'"},
      {"a list", file("[]"), "ST_HEADER_START", "must begin with '{'"},
      {"byte order mark", file("\xEF\xBB\xBF" + kGood, 8), "ST_HEADER_START", "must begin with '{'"},
      {"byte order mark in compat", file("\xEF\xBB\xBF" + kGood, 8), "ST_HEADER_START", "must begin with '{'", kCompat},
      {"white space only, compat", file("        "), "ST_HEADER_START", "must begin with '{'", kCompat},
      {"leading NUL, compat", file(std::string(1, '\0') + kGood, 8), "ST_HEADER_START", "must begin with '{'", kCompat},
      {"newline after the header", file(kGood + "\n", 8), "ST_HEADER_TRAILING", "only spaces may follow"},
      {"tab before spaces", file(kGood + "\t  ", 8), "ST_HEADER_TRAILING", "the last byte there is 9"},
      {"second value", file(kGood + "{}", 8), "ST_HEADER_TRAILING", "something follows the closing brace"},
      {"second value after spaces", file(kGood + "    1", 8), "ST_HEADER_TRAILING",
       "something follows the closing brace"},
      {"stray brace", file(kGood + "}", 8), "ST_HEADER_TRAILING", "something follows the closing brace"},
      {"NUL padding", file(kGood + std::string(3, '\0'), 8), "ST_HEADER_TRAILING",
       "a NUL byte follows the closing brace, at byte 54"},
      {"NUL between spaces", file(kGood + std::string(" \0 ", 3), 8), "ST_HEADER_TRAILING",
       "a NUL byte follows the closing brace, at byte 55"},
      {"NUL padding in compat", file(kGood + std::string(8, '\0'), 8), "ST_HEADER_TRAILING",
       "a NUL byte follows the closing brace, at byte 54", kCompat},
      {"second value in compat", file(kGood + "\n{}", 8), "ST_HEADER_TRAILING", "something follows", kCompat},
      {"NUL hides a second header", file("{}" + std::string(1, '\0') + kGood, 8), "ST_HEADER_TRAILING",
       "at byte 2 of the header"},
      {"NUL inside an object", file("{\"a\":{" + std::string(1, '\0') + "}}"), "ST_JSON_SYNTAX", "not JSON at byte"},
      {"NUL inside a name", file("{\"a" + std::string(1, '\0') + "\":{}}"), "ST_JSON_SYNTAX", "not JSON at byte"},
  };
}

std::vector<Case> utf8_cases() {
  const auto named = [](const std::string& name) { return file("{" + entry(name, "F32", "[2]", 0, 8) + "}", 8); };
  return {
      {"stray tail byte", named("a\x80"), "ST_UTF8", "byte 3 of the header is not UTF-8"},
      {"three tail bytes", named("\x80\x80\x80"), "ST_UTF8", "byte 2"},
      {"four tail bytes", named("\x80\x80\x80\x80"), "ST_UTF8", "byte 2"},
      {"a lead that no character has", named("\xF5\x80\x80\x80"), "ST_UTF8", "byte 2"},
      {"overlong slash", named("\xC0\xAF"), "ST_UTF8", "byte 2 of the header is not UTF-8"},
      {"overlong in three bytes", named("\xE0\x80\xAF"), "ST_UTF8", "byte 2"},
      {"overlong in four bytes", named("\xF0\x8F\xBF\xBF"), "ST_UTF8", "byte 2"},
      {"surrogate", named("\xED\xA0\x80"), "ST_UTF8", "byte 2"},
      {"above U+10FFFF", named("\xF4\x90\x80\x80"), "ST_UTF8", "byte 2"},
      {"cut sequence", named("\xE2\x82"), "ST_UTF8", "byte 2"},
      {"Latin-1", named("caf\xE9"), "ST_UTF8", "byte 5"},
      {"far into the header", named(std::string(100, 'x') + "\xFF"), "ST_UTF8", "byte 102"},
      {"in the padding", file(kGood + "\xFF", 8), "ST_UTF8", "byte 54"},
      {"escaped half of a pair", named("\\ud800"), "ST_UTF8", "half of a surrogate pair"},
      {"escaped second half first", named("\\udc00\\ud800"), "ST_UTF8", "half of a surrogate pair"},
  };
}

}  // namespace

const std::vector<Case>& framing_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all = length_cases();
    for (auto&& more : {edge_cases(), utf8_cases()}) all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return cases;
}

}  // namespace trainer::weights::corpus
