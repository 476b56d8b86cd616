/// @file Low-rank pairs of layers that another program keeps as one layer, e.g. q, k and v as qkv: joined and parted
/// without changing what they compute, and so that parting what was joined gives the same bits.
#pragma once

#include <adapter/lora_layer.hpp>

#include <span>
#include <string>
#include <vector>

namespace trainer::adapter {

/// Joins the pairs of `names` (layers of equal size whose output rows follow one another; some may be missing in
/// `parts`) into one pair of the layer `fused`. Equal matrices A stay one of the same rank; otherwise the ranks add up:
/// A stands stacked and B is block-diagonal. Parts of different scale are brought to alpha = rank first.
LoraLayer fuse(const std::string& fused, const std::vector<std::string>& names, std::span<const LoraLayer> parts);

/// The parts of a pair whose layer joins `names`. A block-diagonal B gives each part its own rows of A; otherwise every
/// part gets the whole A. Parts whose B is zero beside parts where it is not are left out: they compute nothing.
/// `layer.up` must have a multiple of names.size() rows.
std::vector<LoraLayer> split(const LoraLayer& layer, const std::vector<std::string>& names);

/// The same with the halves of the output rows exchanged.
LoraLayer swap_halves(LoraLayer layer);

/// alpha = rank, with the scale in `up`; a type of 16 bits becomes fp32 unless the scale is a power of two.
LoraLayer fold(LoraLayer layer);
/// Undoes `fold` of a pair that had this scale before.
LoraLayer unfold(LoraLayer layer, double scale);

}  // namespace trainer::adapter
