#include <weights/header_events.hpp>

#include <trainer/sdk/names.hpp>

#include <algorithm>
#include <utility>

namespace trainer::weights {
namespace {

constexpr char kRewrite[] = "; whatever wrote this file is faulty: export it again with another program";
constexpr char kDamaged[] = "; the file is damaged: fetch it again";

std::string kind_text(const JsonScalar& scalar) {
  switch (scalar.kind) {
    case JsonScalar::Kind::null:
    case JsonScalar::Kind::boolean:
      return scalar.text;
    case JsonScalar::Kind::string:
      return "the string " + quote_name(scalar.text);
    case JsonScalar::Kind::integer:
      return "the number " + std::to_string(scalar.integer);
    case JsonScalar::Kind::other_number:
      return "the number " + scalar.text.substr(0, 40);
  }
  return scalar.text;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string HeaderEvents::where() const {
  const bool inside = at_ == At::entry || at_ == At::shape || at_ == At::offsets || at_ == At::unknown;
  return inside ? "tensor " + quote_name(entry_.name) + ": " : std::string();
}

void HeaderEvents::fail(const char* code, const std::string& text) const {
  throw Error(ExitCode::bad_input, file_ + ": " + where() + text, code);
}

void HeaderEvents::begin(bool object) {
  if (++depth_ > kMaxDepth)
    fail("ST_JSON_DEPTH", "the header nests deeper than " + std::to_string(kMaxDepth) + kDamaged);
  begin_value(object);
}

void HeaderEvents::begin_value(bool object) {
  const std::string kind = object ? "an object" : "a list";
  switch (at_) {
    case At::outside:  // an object: parse_header has seen the brace
      at_ = At::root;
      return;
    case At::root:
      if (key_ == "__metadata__") {
        if (!object)
          fail("ST_METADATA_TYPE", "\"__metadata__\" must be an object, it is a list" + std::string(kRewrite));
        at_ = At::metadata;
        return;
      }
      entry_ = TensorEntry{};
      entry_.name = std::move(key_);
      fields_ = 0;
      at_ = At::entry;
      if (!object) fail("ST_JSON_SHAPE", "its entry must be an object, it is a list" + std::string(kDamaged));
      return;
    case At::metadata:
      fail("ST_METADATA_TYPE", "metadata " + quote_name(key_) + " must be a string, it is " + kind + kRewrite);
    case At::entry:
      if (field_ == kUnknown) {
        at_ = At::unknown;
        unknown_depth_ = depth_;
        unknown_keys_[depth_].clear();
        return;
      }
      if (field_ == kDtype) fail("ST_JSON_SHAPE", "\"dtype\" must be a string, it is " + kind + kDamaged);
      if (object) {
        fail("ST_JSON_SHAPE", std::string(field_ == kShape ? "\"shape\"" : "\"data_offsets\"") +
                                  " must be a list, it is an object" + kDamaged);
      }
      at_ = field_ == kShape ? At::shape : At::offsets;
      offsets_ = 0;
      return;
    case At::shape:
    case At::offsets:
      fail("ST_JSON_SHAPE", std::string(at_ == At::shape ? "\"shape\"" : "\"data_offsets\"") + " holds " + kind +
                                ", not numbers" + kDamaged);
    case At::unknown:
      unknown_keys_[depth_].clear();
      return;
  }
}

void HeaderEvents::finish() {
  --depth_;
  switch (at_) {
    case At::outside:
      return;
    case At::root:
      at_ = At::outside;
      root_done_ = true;
      if (unknown_entries_ > 0) {
        header_.warnings.push_back(file_ + ": " + std::to_string(unknown_entries_) +
                                   " tensors have fields other than dtype, shape and data_offsets; they are ignored");
      }
      return;
    case At::metadata:
      at_ = At::root;
      return;
    case At::entry:
      finish_entry();
      at_ = At::root;
      return;
    case At::shape:
      at_ = At::entry;
      return;
    case At::offsets:
      if (offsets_ != 2) {
        fail("ST_OFFSETS",
             "\"data_offsets\" has " + std::to_string(offsets_) + " numbers; it needs 2, begin and end" + kDamaged);
      }
      at_ = At::entry;
      return;
    case At::unknown:
      if (depth_ < unknown_depth_) at_ = At::entry;
      return;
  }
}

void HeaderEvents::finish_entry() {
  for (const auto& [bit, name] : {std::pair{kDtype, "dtype"}, {kShape, "shape"}, {kOffsets, "data_offsets"}}) {
    if ((fields_ & bit) == 0) fail("ST_ENTRY_FIELD", "\"" + std::string(name) + "\" is missing" + kDamaged);
  }
  if ((fields_ & kUnknown) != 0) ++unknown_entries_;
  header_.entries.push_back(std::move(entry_));
}

void HeaderEvents::key(std::string&& name) {
  switch (at_) {
    case At::root:
      return root_key(std::move(name));
    case At::metadata:
      return metadata_key(std::move(name));
    case At::entry:
      return entry_key(std::move(name));
    default:  // At::unknown; lists have no keys
      if (!unknown_keys_[depth_].insert(name).second) {
        fail("ST_DUP_KEY", "the key " + quote_name(name) + " appears twice" + kRewrite);
      }
  }
}

void HeaderEvents::root_key(std::string&& name) {
  if (name == "__metadata__") {
    if (std::exchange(metadata_seen_, true))
      fail("ST_DUP_KEY", "\"__metadata__\" appears twice" + std::string(kRewrite));
  } else {
    if (name.empty() || name.size() > kMaxNameBytes) {
      fail("ST_NAME", "a tensor name has " + std::to_string(name.size()) + " bytes; allowed are 1 to " +
                          std::to_string(kMaxNameBytes) + kRewrite);
    }
    for (const char c : name) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
        fail("ST_NAME", "the tensor name " + quote_name(name) + " holds a control character" + kRewrite);
      }
    }
    if (header_.entries.size() == kMaxTensors) {
      fail("ST_TOO_MANY", "more than " + std::to_string(kMaxTensors) + " tensors" + kDamaged);
    }
  }
  key_ = std::move(name);
}

void HeaderEvents::metadata_key(std::string&& name) {
  if (header_.metadata.contains(name)) {
    fail("ST_DUP_KEY", "metadata " + quote_name(name) + " appears twice" + kRewrite);
  }
  if (header_.metadata.size() == kMaxMetadataKeys) {
    fail("ST_LIMIT", "\"__metadata__\" has more than " + std::to_string(kMaxMetadataKeys) + " keys" + kDamaged);
  }
  metadata_bytes_ += name.size();
  key_ = std::move(name);
}

void HeaderEvents::entry_key(std::string&& name) {
  field_ = name == "dtype" ? kDtype : name == "shape" ? kShape : name == "data_offsets" ? kOffsets : kUnknown;
  if (field_ == kUnknown) {
    if (profile_ == Profile::strict) {
      fail("ST_ENTRY_FIELD",
           "unknown field " + quote_name(name) + "; an entry has dtype, shape and data_offsets" + kRewrite);
    }
    if ((fields_ & kUnknown) == 0) unknown_keys_[depth_].clear();
    if (!unknown_keys_[depth_].insert(name).second) {
      fail("ST_DUP_KEY", "the key " + quote_name(name) + " appears twice" + kRewrite);
    }
  } else if ((fields_ & field_) != 0) {
    fail("ST_DUP_KEY", "the key " + quote_name(name) + " appears twice" + kRewrite);
  }
  fields_ |= field_;
}

void HeaderEvents::value(JsonScalar&& scalar) {
  switch (at_) {
    case At::outside:
      return;
    case At::root:
      if (key_ == "__metadata__") {
        if (scalar.kind == JsonScalar::Kind::null && profile_ == Profile::compat) return;
        fail("ST_METADATA_TYPE", "\"__metadata__\" must be an object, it is " + kind_text(scalar) + kRewrite);
      }
      fail("ST_JSON_SHAPE",
           "tensor " + quote_name(key_) + ": its entry must be an object, it is " + kind_text(scalar) + kDamaged);
    case At::metadata:
      return add_metadata(std::move(scalar));
    case At::entry:
      if (field_ == kUnknown) return;
      if (field_ == kDtype) return set_dtype(std::move(scalar));
      fail("ST_JSON_SHAPE", std::string(field_ == kShape ? "\"shape\"" : "\"data_offsets\"") +
                                " must be a list, it is " + kind_text(scalar) + kDamaged);
    case At::shape:
      if (entry_.shape.size() == kMaxRank) {
        fail("ST_RANK", "more than " + std::to_string(kMaxRank) + " dimensions" + kDamaged);
      }
      entry_.shape.push_back(static_cast<int64_t>(integer(scalar, "ST_DIM")));
      return;
    case At::offsets: {
      const uint64_t number = integer(scalar, "ST_INT");
      if (++offsets_ > 2) fail("ST_OFFSETS", "\"data_offsets\" has more than 2 numbers" + std::string(kDamaged));
      (offsets_ == 1 ? entry_.begin : entry_.end) = number;
      return;
    }
    case At::unknown:
      return;
  }
}

void HeaderEvents::set_dtype(JsonScalar&& scalar) {
  if (scalar.kind != JsonScalar::Kind::string) {
    fail("ST_JSON_SHAPE", "\"dtype\" must be a string, it is " + kind_text(scalar) + kDamaged);
  }
  const auto dtype = dtype_from_name(scalar.text);
  if (!dtype) fail("ST_DTYPE", "unknown dtype " + quote_name(scalar.text) + "; known are " + known_dtypes());
  entry_.dtype = *dtype;
}

uint64_t HeaderEvents::integer(const JsonScalar& scalar, const char* too_large_code) const {
  if (scalar.kind == JsonScalar::Kind::integer && scalar.integer <= uint64_t{INT64_MAX}) return scalar.integer;

  const std::string holds =
      std::string(at_ == At::shape ? "\"shape\"" : "\"data_offsets\"") + " holds " + kind_text(scalar);
  if (scalar.kind != JsonScalar::Kind::integer && scalar.kind != JsonScalar::Kind::other_number) {
    fail("ST_JSON_SHAPE", holds + ", not a number" + kDamaged);
  }
  if (std::all_of(scalar.text.begin(), scalar.text.end(), is_digit)) {
    fail(too_large_code, holds + "; the limit is 2^63 - 1" + kDamaged);
  }
  fail("ST_INT", holds + "; only digits are allowed, no sign, fraction or exponent" + kDamaged);
}

void HeaderEvents::add_metadata(JsonScalar&& scalar) {
  if (scalar.kind != JsonScalar::Kind::string) {
    fail("ST_METADATA_TYPE",
         "metadata " + quote_name(key_) + " must be a string, it is " + kind_text(scalar) + kRewrite);
  }
  metadata_bytes_ += scalar.text.size();
  if (metadata_bytes_ > kMaxMetadataBytes) {
    fail("ST_LIMIT", "\"__metadata__\" holds more than " + std::to_string(kMaxMetadataBytes) + " bytes" + kDamaged);
  }
  header_.metadata.emplace(std::move(key_), std::move(scalar.text));
}

void HeaderEvents::syntax_error(std::size_t position, const std::string& token, const std::string& reason) {
  const std::string at = " at byte " + std::to_string(position) + " of the header";
  if (root_done_) {
    fail("ST_HEADER_TRAILING", "something follows the closing brace" + at + ": " + quote_name(token) + kDamaged);
  }
  if (reason.find("surrogate") != std::string::npos) {
    fail("ST_UTF8", "half of a surrogate pair" + at + ": " + quote_name(token) + kDamaged);
  }
  // A number that JSON has no form for ("01" reads as 0 followed by a stray 1, "+1" as no value at all) or no room for.
  const bool number =
      reason.find("invalid number") != std::string::npos || reason.find("number overflow") != std::string::npos;
  const bool list = at_ == At::shape || at_ == At::offsets;
  if (number || (list && !token.empty() && (is_digit(token[0]) || token.back() == '+'))) {
    fail("ST_INT", "malformed number" + at + ": " + quote_name(token) + kDamaged);
  }
  fail("ST_JSON_SYNTAX", "the header is not JSON" + at + ": " + quote_name(token) + kDamaged);
}

}  // namespace trainer::weights
