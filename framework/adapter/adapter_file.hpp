/// @file Files of adapters of any kind under the names of a model family: which kind a file is, reading, writing. Files
/// of LoRA matrices are read and written by lora_file.hpp, in all formats of the family.
#pragma once

#include <adapter/lora_file.hpp>
#include <trainer/sdk/adapter.hpp>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trainer::adapter {

/// A kind of adapter, as its manifest describes it.
struct AdapterKind {
  std::string name;                  ///< "lora"
  std::vector<std::string> tensors;  ///< what the names of its tensors end in: "lora_A.weight", ...
};

/// An adapter out of a file.
struct ReadAdapter {
  std::string kind;              ///< of the adapter that reads it; "" for LoRA matrices that no kind reads
  std::string format;            ///< of the family, or "other"
  AdapterFile file;              ///< under canonical names
  std::optional<LoraFile> lora;  ///< the same as pairs, where the file holds LoRA matrices and nothing else
  std::optional<int64_t> step;   ///< of the run that made it
  [[nodiscard]] std::vector<std::string> layers() const;
};

/// The kind of a file: the one that its metadata names. Without a name, a kind that lists all tensors of the file: for
/// LoRA matrices the first of `kinds`, otherwise the one that lists the fewest. nullptr: none, as for a file that is
/// not an adapter.
const AdapterKind* kind_of(const weights::TensorFile& file, std::span<const AdapterKind> kinds);

/// The kind that the metadata of our file names; "" without.
std::string stated_kind(const weights::TensorFile& file);

/// Whether the file is an adapter, known or not.
bool is_adapter(const weights::TensorFile& file, std::span<const AdapterKind> kinds);

/// Whether most tensors are named like a part of an adapter on a layer of the family; nothing is read.
bool knows_names(const LoraFamily& family, const weights::TensorFile& file, std::span<const AdapterKind> kinds);

/// Reads the file for this kind of adapter; nullptr: LoRA matrices only. Throws Error: bad_input (LORA_KEYS) listing
/// every tensor that is none of the kind or belongs to no layer; (LORA_NONFINITE); and what read_lora throws.
ReadAdapter read_adapter(const weights::TensorFile& file, const LoraFamily& family, const AdapterKind* kind);

/// A LoRA as `read_adapter` gives it.
ReadAdapter as_adapter(LoraFile lora, const std::string& kind, std::map<std::string, std::string> metadata = {});

/// The pairs of an adapter whose layers hold LoRA matrices and nothing else; nullopt for any other.
std::optional<LoraFile> lora_of(const AdapterFile& adapter);

/// What a run writes: the family's first format; for an adapter that is no LoRA the first with canonical names.
LoraFormat format_of_run(const AdapterFile& adapter, const LoraFamily& family);

/// Writes `adapter` whole or not at all: LoRA matrices as write_lora does, others as "<prefix><layer>.<end>" with the
/// kind in the metadata. Entries of `adapter.metadata` are written beside the usual ones. Throws Error: non_finite,
/// naming the tensor (nothing is written); bad_input for a layer that the format joins with others or does not name;
/// io.
void write_adapter(const std::filesystem::path& file, const AdapterFile& adapter, const std::string& kind,
                   const LoraFamily& family, const LoraFormat& format, std::optional<int64_t> step);

/// As check_layers of LoRA pairs; of other kinds the names alone are compared.
void check_layers(const std::string& where, const ReadAdapter& adapter, std::span<const Linear> model);

}  // namespace trainer::adapter
