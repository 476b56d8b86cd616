/// @file The header of a safetensors file: parsed and checked whole before anything is believed. Free of LibTorch.
///
/// Source of the format: github.com/huggingface/safetensors, README "Format". What the reference code (0.8.0) accepts
/// and we refuse, in both profiles: duplicate names, empty and very long names, control characters in names, and what is
/// over the limits below; in strict also: unknown fields, white space around the header other than trailing spaces,
/// "__metadata__": null. Nothing else differs (tests/unit/weights/reference_verdicts_test.cpp).
#pragma once

#include <weights/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::weights {

/// How much of what others write is tolerated. Safety is the same in both: compat only lets pass what cannot change
/// the meaning of a tensor (white space around the header, unknown fields, "__metadata__": null).
enum class Profile { strict, compat };

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;  ///< empty: one element
  uint64_t begin = 0;          ///< bytes from the start of the data
  uint64_t end = 0;
  [[nodiscard]] uint64_t bytes() const { return end - begin; }
};

/// Every entry has passed: sizes fit dtype and shape, spans follow each other without gap, end is the file's end.
struct Header {
  std::vector<TensorEntry> entries;  ///< in file order
  std::map<std::string, std::string> metadata;
  uint64_t data_offset = 0;           ///< where the data starts in the file
  std::vector<std::string> warnings;  ///< what compat let pass, for the log
  std::vector<uint32_t> by_name;      ///< indices into `entries`, sorted by name

  /// nullptr when there is none.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
};

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the reference implementation
inline constexpr std::size_t kMaxTensors = 1'000'000;
inline constexpr std::size_t kMaxNameBytes = 4096;
inline constexpr std::size_t kMaxRank = 64;
inline constexpr std::size_t kMaxMetadataKeys = 65'536;
inline constexpr std::size_t kMaxMetadataBytes = std::size_t{16} << 20;

/// Length of the JSON text that the first 8 bytes claim, checked against the file's size and the limit.
/// Throws Error (bad_input): ST_TOO_SHORT, ST_HEADER_LEN, ST_HEADER_TOO_LARGE, ST_TRUNCATED_HEADER.
/// `prefix`: the first bytes of the file, up to 64 (what follows the 8 helps to tell what the file really is).
uint64_t header_length(std::string_view prefix, uint64_t file_size, const std::string& file_name);

/// `bytes`: the file's beginning, at least 8 + header_length. Nothing larger than a few times the header is allocated.
/// Throws Error (bad_input, code ST_*) with file, tensor, numbers and what to do.
Header parse_header(std::string_view bytes, uint64_t file_size, const std::string& file_name,
                    Profile profile = Profile::strict);

/// Bytes of a tensor, or an error text (overflow, not whole bytes). A side of zero makes the rest of
/// the shape none the smaller: [2^62, 2, 0] overflows.
struct TensorSize {
  uint64_t bytes = 0;
  const char* code = nullptr;  ///< nullptr, "ST_OVERFLOW" or "ST_SUBBYTE"
};
TensorSize tensor_size(Dtype dtype, const std::vector<int64_t>& shape);

}  // namespace trainer::weights
