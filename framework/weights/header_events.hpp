/// @file The JSON part of a safetensors header, event by event (internal to the header parser).
#pragma once

#include <array>
#include <set>
#include <trainer/sdk/error.hpp>
#include <weights/json_events.hpp>
#include <weights/safetensors_header.hpp>

namespace trainer::weights {

/// Collects entries and metadata; throws at the first broken rule. What concerns several entries (order of the spans,
/// duplicate names) is checked by parse_header afterwards.
class HeaderEvents final : public JsonEvents {
 public:
  HeaderEvents(std::string file, Profile profile, Header& header)
      : file_(std::move(file)), profile_(profile), header_(header) {}

  void begin(bool object) override;
  void finish() override;
  void key(std::string&& name) override;
  void value(JsonScalar&& scalar) override;
  [[noreturn]] void syntax_error(std::size_t position, const std::string& token, const std::string& reason) override;

 private:
  enum class At { outside, root, metadata, entry, shape, offsets, unknown };
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4, kUnknown = 8, kAll = 7 };
  static constexpr std::size_t kMaxDepth = 4;

  void root_key(std::string&& name);
  void entry_key(std::string&& name);
  void metadata_key(std::string&& name);
  void begin_value(bool object);
  void finish_entry();
  void set_dtype(JsonScalar&& scalar);
  [[nodiscard]] uint64_t integer(const JsonScalar& scalar, const char* too_large_code) const;
  void add_metadata(JsonScalar&& scalar);
  /// "tensor "a": " while inside an entry.
  [[nodiscard]] std::string where() const;
  [[noreturn]] void fail(const char* code, const std::string& text) const;

  std::string file_;
  Profile profile_;
  Header& header_;
  At at_ = At::outside;
  std::size_t depth_ = 0;
  bool root_done_ = false;
  bool metadata_seen_ = false;
  std::string key_;       // of the entry or the metadata value
  unsigned fields_ = 0;   // of the entry so far
  Field field_ = kDtype;  // being read
  TensorEntry entry_;
  std::size_t offsets_ = 0;
  std::size_t metadata_bytes_ = 0;
  std::size_t unknown_entries_ = 0;
  std::size_t unknown_depth_ = 0;
  std::array<std::set<std::string>, kMaxDepth + 1> unknown_keys_;  // by depth, for duplicates
};

}  // namespace trainer::weights
