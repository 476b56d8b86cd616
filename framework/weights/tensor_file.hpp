/// @file Tensors out of one safetensors file, one at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <trainer/sdk/weights.hpp>
#include <weights/mapped_file.hpp>
#include <weights/safetensors_header.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::weights {

/// How bytes get into a tensor. `automatic` copies small tensors and maps those of kMapFrom bytes and more: a mapped
/// tensor costs no memory of its own (its pages are the file's, and can be dropped), so a model is streamed tensor by
/// tensor with one copy in memory. `copy` is safe even when another program cuts the file while a tensor is in use.
enum class ReadMode { automatic, copy, map };
inline constexpr uint64_t kMapFrom = uint64_t{1} << 20;

struct ReadOptions {
  Profile profile = Profile::strict;
  ReadMode mode = ReadMode::automatic;
};

class TensorFile {
 public:
  /// Reads and checks the header, no data. Throws Error: not_found; bad_input (ST_*); io.
  explicit TensorFile(const std::filesystem::path& file, ReadOptions options = {});
  TensorFile(MappedFile file, ReadOptions options);

  /// Sorted.
  [[nodiscard]] std::vector<std::string> names() const;
  /// nullptr when there is none. `dtype` is Undefined for an element type that LibTorch lacks.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const;
  /// Contiguous, on the CPU, stored dtype. The tensor may be a mapped view: it keeps its mapping alive by itself, and
  /// writing to it does not reach the file. Throws Error (bad_input): ST_NO_TENSOR, ST_DTYPE_UNSUPPORTED, ST_BOOL,
  /// ST_CHANGED; io.
  [[nodiscard]] at::Tensor read(std::string_view name) const;
  /// Rows [begin, end) of dimension 0; touches only their bytes. Throws as `read`, and ST_ROWS.
  [[nodiscard]] at::Tensor read_rows(std::string_view name, int64_t begin, int64_t end) const;

  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  [[nodiscard]] const Header& header() const { return header_; }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] const MappedFile& file() const { return file_; }
  /// XXH3-128 of the header bytes.
  [[nodiscard]] const std::string& header_hash() const { return header_hash_; }

 private:
  struct Located {
    const TensorEntry& entry;
    at::ScalarType type;
  };
  void load_header();
  [[nodiscard]] Located locate(std::string_view name) const;
  [[nodiscard]] at::Tensor load(const Located& tensor, const std::vector<int64_t>& shape, uint64_t begin,
                                uint64_t bytes) const;
  void check_bool(const at::Tensor& tensor, const std::string& name) const;

  MappedFile file_;
  ReadOptions options_;
  Header header_;
  std::string header_hash_;
  std::vector<TensorInfo> infos_;  // as header_.entries
};

}  // namespace trainer::weights
