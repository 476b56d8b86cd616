/// @file See dry_cuda.hpp.
#include "dry_cuda.hpp"

#include <array>
#include <atomic>

namespace trainer::fused {
namespace {

constexpr std::size_t kMost = 64;
std::array<std::atomic<bool>, kMost> marked{};

std::size_t place_of(at::Device device) { return device.index() < 0 ? 0 : static_cast<std::size_t>(device.index()); }

}  // namespace

void set_dry_cuda(at::Device device, bool cuda) {
  if (device.is_meta() && place_of(device) < kMost) marked.at(place_of(device)) = cuda;
}

bool stands_for_cuda(const at::Tensor& tensor) {
  return tensor.is_meta() && place_of(tensor.device()) < kMost && marked.at(place_of(tensor.device()));
}

}  // namespace trainer::fused
