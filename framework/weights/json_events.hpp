/// @file JSON as a stream of events, for texts that nobody vouches for: no document tree is built, so memory stays
/// proportional to what the reader keeps. Used by the header and the shard index readers only (internal).
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace trainer::weights {

/// A value that is neither object nor array. `text` is a string's content, or a number as written
/// (empty for Kind::integer).
struct JsonScalar {
  enum class Kind { null, boolean, integer, other_number, string } kind;
  uint64_t integer = 0;  ///< Kind::integer: digits only, no sign, fraction or exponent, up to 2^64 - 1
  std::string text;
};

/// Receives the events; every method throws to stop. Keys arrive unescaped.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void begin(bool object) = 0;
  virtual void finish() = 0;
  virtual void key(std::string&& name) = 0;
  virtual void value(JsonScalar&& scalar) = 0;
  /// `position`: bytes read; `token`: the offending text; `reason`: the parser's own words..
  virtual void syntax_error(std::size_t position, const std::string& token, const std::string& reason) = 0;
};

/// Joins nlohmann's event interface to ours.
class JsonAdapter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonAdapter(JsonEvents& events) : events_(events) {}
  bool null() override { return scalar({JsonScalar::Kind::null, 0, "null"}); }
  bool boolean(bool yes) override { return scalar({JsonScalar::Kind::boolean, 0, yes ? "true" : "false"}); }
  bool number_integer(int64_t number) override {  // only called for numbers with a minus sign
    return scalar({JsonScalar::Kind::other_number, 0, number == 0 ? "-0" : std::to_string(number)});
  }
  bool number_unsigned(uint64_t number) override { return scalar({JsonScalar::Kind::integer, number, {}}); }
  bool number_float(double, const std::string& text) override {
    return scalar({JsonScalar::Kind::other_number, 0, text});
  }
  bool string(std::string& text) override { return scalar({JsonScalar::Kind::string, 0, std::move(text)}); }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // not in JSON text
  bool start_object(std::size_t) override { return events_.begin(true), true; }
  bool start_array(std::size_t) override { return events_.begin(false), true; }
  bool key(std::string& name) override { return events_.key(std::move(name)), true; }
  bool end_object() override { return events_.finish(), true; }
  bool end_array() override { return events_.finish(), true; }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::json::exception& error) override {
    return events_.syntax_error(position, token, error.what()), false;
  }

 private:
  bool scalar(JsonScalar&& value) { return events_.value(std::move(value)), true; }
  JsonEvents& events_;
};

/// One value and nothing after it but JSON whitespace. The caller has checked for NUL bytes and a byte order mark,
/// which this parser would take as an end and skip.
inline void parse_json(std::string_view text, JsonEvents& events) {
  JsonAdapter adapter(events);
  nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &adapter);
}

}  // namespace trainer::weights
