/// @file The index of a model that is stored in several safetensors files (`*.safetensors.index.json`): which tensor is
/// in which file. An index is a text from the network that names files to open: names are kept inside the model's
/// folder. Free of LibTorch.
#pragma once

#include <weights/mapped_file.hpp>
#include <weights/safetensors_header.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::weights {

inline constexpr std::size_t kMaxIndexBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxShards = 10'000;

struct ShardIndex {
  std::string file_name;                       ///< of the index, for messages
  std::vector<std::string> shards;             ///< file names, sorted
  std::map<std::string, uint32_t> weight_map;  ///< tensor -> position in `shards`
  std::optional<uint64_t> total_size;          ///< bytes of all tensors, as the index claims
};

/// Throws Error (bad_input): IDX_SHAPE, IDX_DUP_KEY, IDX_PATH, IDX_LIMIT.
ShardIndex parse_shard_index(std::string_view text, const std::string& file_name);

/// Opens a file of a model folder. A symbolic link is followed only into the folder itself or into the `blobs` folder
/// of the Hugging Face cache that the folder is part of (`models--X/snapshots/REV/...` -> `models--X/blobs/HASH`).
/// Throws Error: bad_input IDX_SYMLINK, and as MappedFile::open.
MappedFile open_in_folder(const std::filesystem::path& folder, const std::string& name);

/// Opens all shards; a missing one is reported with all others that are missing, before anything is read.
/// Throws Error: not_found IDX_MISSING_SHARD; bad_input IDX_SYMLINK, IDX_LIMIT (one file under two names).
std::vector<MappedFile> open_shards(const ShardIndex& index, const std::filesystem::path& folder);

/// Compares the index with what the shards hold (in the order of `index.shards`). Returns what compat lets pass.
/// Throws Error (bad_input): IDX_MISSING_TENSOR, IDX_WRONG_SHARD, IDX_DUP_TENSOR; strict also IDX_EXTRA_TENSOR,
/// IDX_TOTAL_SIZE.
std::vector<std::string> check_shards(const ShardIndex& index, const std::vector<const Header*>& headers,
                                      Profile profile);

}  // namespace trainer::weights
