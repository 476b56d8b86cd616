/// @file Hashes in the metadata of a LoRA file. `modelspec.hash_sha256` as github.com/Stability-AI/ModelSpec 1.0.0 has
/// it; `sshs_*` as sd-scripts and musubi-tuner write them for the stable-diffusion web UIs.
#include <ATen/core/Tensor.h>
#include <adapter/lora_metadata.hpp>
#include <weights/stream_hash.hpp>
#include <weights/write.hpp>

#include <algorithm>

namespace trainer::adapter {
namespace {

/// The older hash is one of these bytes of the file, however short that is.
constexpr uint64_t kWindowBegin = 0x100000, kWindowEnd = 0x110000;
constexpr std::size_t kShort = 8;

}  // namespace

void add_hashes(weights::Metadata& metadata, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                bool kohya) {
  const bool specified = metadata.contains("modelspec.sai_model_spec");
  if (!specified && !kohya) return;
  // Of a file with this metadata alone: what users add later shall not change the older hash.
  weights::Metadata training;
  for (const auto& [key, value] : metadata)
    if (key.starts_with("ss_")) training.emplace(key, value);
  weights::StreamHash data({.sha256 = true}), window({.sha256 = true});
  uint64_t at = 0;
  weights::stream_safetensors(tensors, training, [&](const void* bytes, std::size_t size) {
    if (at > 0) data.add(bytes, size);  // behind the header, which is the first piece
    const uint64_t begin = std::clamp(kWindowBegin, at, at + size), end = std::clamp(kWindowEnd, at, at + size);
    window.add(static_cast<const char*>(bytes) + (begin - at), end - begin);
    at += size;
  });
  const std::string hash = data.sha256();
  if (specified) metadata["modelspec.hash_sha256"] = "0x" + hash;
  if (!kohya) return;
  metadata["sshs_model_hash"] = hash;
  metadata["sshs_legacy_hash"] = window.sha256().substr(0, kShort);
}

}  // namespace trainer::adapter
