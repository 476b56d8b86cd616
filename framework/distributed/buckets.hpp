/// @file Tensors in a fixed order as few flat pieces of host memory: what is sent in one go.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace trainer::distributed {

/// Tensors [first, end) of a list.
struct Bucket {
  std::size_t first = 0, end = 0;
};

/// In order, each of at most `most` elements but where a single tensor has more. 8 Mi elements are 32 MB in fp32: large
/// enough for the network, small beside a model.
std::vector<Bucket> buckets_of(const std::vector<at::Tensor>& tensors, int64_t most = int64_t{8} << 20);

/// The bucket's tensors (fp32) one after another, on the CPU.
at::Tensor packed(const std::vector<at::Tensor>& tensors, const Bucket& bucket);
/// Copies `flat` back into them.
void unpack(const at::Tensor& flat, const std::vector<at::Tensor>& tensors, const Bucket& bucket);

}  // namespace trainer::distributed
