/// @file Writes safetensors files from plain bytes: used by the LoRA export, the cache and the checkpoints. Free of
/// LibTorch.
///
/// The bytes are those of the reference implementation (safetensors 0.8): tensors by dtype, larger first, then by name;
/// the header padded with spaces to a multiple of 8. Metadata keys are sorted, which the reference leaves to chance.
#pragma once

#include <weights/atomic_file.hpp>
#include <weights/dtype.hpp>
#include <weights/stream_hash.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trainer::weights {

using Metadata = std::map<std::string, std::string>;

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  [[nodiscard]] uint64_t bytes() const;
};

/// `specs` in the order in which the file holds them.
void sort_for_file(std::vector<TensorSpec>& specs);
/// The first bytes of a file: length, JSON, padding. `specs` must be in file order. What it returns, the strict parser
/// accepts; names or metadata that it would refuse throw its Error.
std::string make_header(const std::vector<TensorSpec>& specs, const Metadata& metadata, const std::string& file_name);

struct WrittenFile {
  uint64_t bytes = 0;
  std::string xxh128;  ///< of the whole file, where chosen
  std::string sha256;
};

/// Streams a file of any size, holding one piece at a time. Nothing shows under `file` before `commit`.
class SafetensorsWriter {
 public:
  /// Throws Error: io; bad_input for what the format does not allow.
  SafetensorsWriter(const std::filesystem::path& file, std::vector<TensorSpec> specs, const Metadata& metadata,
                    HashChoice hashes = {});
  /// In file order: the data must be appended in this order, without gaps, in pieces of any size.
  [[nodiscard]] const std::vector<TensorSpec>& specs() const { return specs_; }
  void append(const void* data, std::size_t bytes);
  /// Throws Error (failed) unless every byte was appended; io.
  WrittenFile commit();
  /// The whole file, to be committed with others (AtomicFile::commit). Throws Error (failed) as `commit`.
  std::unique_ptr<AtomicFile> take();

 private:
  void require_whole() const;
  std::vector<TensorSpec> specs_;
  uint64_t expected_ = 0;  // size of the whole file
  std::unique_ptr<AtomicFile> output_;
  StreamHash hash_;
};

struct TensorBytes {
  TensorSpec spec;
  const void* data = nullptr;  ///< spec.bytes() bytes, row-major, little-endian
};

/// The whole file at once, in any order of `tensors`.
WrittenFile write_safetensors_bytes(const std::filesystem::path& file, std::vector<TensorBytes> tensors,
                                    const Metadata& metadata, HashChoice hashes = {});

}  // namespace trainer::weights
