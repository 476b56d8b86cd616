/// @file Lists of tensors in groups of one device each, as LibTorch's foreach and fused operators take them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace trainer::optim {

struct DeviceOrder {
  bool operator()(at::Device a, at::Device b) const {
    return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
  }
};

/// Positions of the tensors of each device, in their order.
inline std::map<at::Device, std::vector<std::size_t>, DeviceOrder> by_device(const std::vector<at::Tensor>& tensors) {
  std::map<at::Device, std::vector<std::size_t>, DeviceOrder> groups;
  for (std::size_t i = 0; i < tensors.size(); ++i) groups[tensors[i].device()].push_back(i);
  return groups;
}

inline std::vector<at::Tensor> chosen(const std::vector<at::Tensor>& tensors,
                                      const std::vector<std::size_t>& positions) {
  std::vector<at::Tensor> list;
  for (const std::size_t i : positions) list.push_back(tensors[i]);
  return list;
}

}  // namespace trainer::optim
