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

/// Of a bucket, by default: 32 MB in fp32, large enough for the network and small beside a model.
constexpr int64_t kMostElements = int64_t{8} << 20;

/// In order, each on one device and of at most `most` elements but where a single tensor has more.
std::vector<Bucket> buckets_of(const std::vector<at::Tensor>& tensors, int64_t most = kMostElements);

/// The bucket's tensors (fp32) one after another, on their device.
at::Tensor packed(const std::vector<at::Tensor>& tensors, const Bucket& bucket);
/// Copies `flat` back into them.
void unpack(const at::Tensor& flat, const std::vector<at::Tensor>& tensors, const Bucket& bucket);

}  // namespace trainer::distributed
