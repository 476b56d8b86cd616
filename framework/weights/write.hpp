/// @file Tensors into a safetensors file.
#pragma once

#include <ATen/core/Tensor.h>
#include <weights/safetensors_writer.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trainer::weights {

/// Writes whole or not at all (see AtomicFile); safe over a file that is open or mapped, also when `tensors` are views
/// of it. Tensors may be on any device, of any strides; they are brought to the CPU one at a time. The bytes depend on
/// names, values and metadata only, not on the order of `tensors`.
/// Throws Error: bad_input (ST_DTYPE_UNSUPPORTED for types the format lacks, ST_DUP_KEY, ST_NAME, ...); io.
WrittenFile write_safetensors(const std::filesystem::path& file,
                              const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                              const Metadata& metadata = {}, HashChoice hashes = {});

/// The same up to the commit, which is left to the caller (AtomicFile::commit, of several files at once).
std::unique_ptr<AtomicFile> stage_safetensors(const std::filesystem::path& file,
                                              const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                                              const Metadata& metadata = {});

/// The bytes that write_safetensors would write, in order and in pieces: the header, then tensor by tensor. For what
/// must be known of a file before it is written.
void stream_safetensors(const std::vector<std::pair<std::string, at::Tensor>>& tensors, const Metadata& metadata,
                        const std::function<void(const void* data, std::size_t bytes)>& piece);

}  // namespace trainer::weights
