#include <ATen/ops/cat.h>

#include <distributed/buckets.hpp>

namespace trainer::distributed {

std::vector<Bucket> buckets_of(const std::vector<at::Tensor>& tensors, int64_t most) {
  std::vector<Bucket> buckets;
  int64_t filled = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (buckets.empty() || filled + tensors[i].numel() > most || tensors[i].device() != tensors[i - 1].device())
      buckets.push_back({i, i}), filled = 0;
    buckets.back().end = i + 1;
    filled += tensors[i].numel();
  }
  return buckets;
}

at::Tensor packed(const std::vector<at::Tensor>& tensors, const Bucket& bucket) {
  std::vector<at::Tensor> flat;
  for (std::size_t i = bucket.first; i < bucket.end; ++i) flat.push_back(tensors[i].reshape({-1}));
  return at::cat(flat);
}

void unpack(const at::Tensor& flat, const std::vector<at::Tensor>& tensors, const Bucket& bucket) {
  int64_t begin = 0;
  for (std::size_t i = bucket.first; i < bucket.end; ++i) {
    const at::Tensor& tensor = tensors[i];
    tensor.copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

}  // namespace trainer::distributed
