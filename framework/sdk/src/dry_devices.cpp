/// @file See dry_devices.hpp.
#include <trainer/sdk/dry_devices.hpp>

#include <algorithm>
#include <atomic>

namespace trainer {
namespace {

constexpr std::size_t kMostDevices = 64;
std::atomic<uint64_t> marked{0};  ///< a bit a device

uint64_t bits_of(const std::vector<bool>& cuda) {
  uint64_t bits = 0;
  for (std::size_t i = 0; i < std::min(cuda.size(), kMostDevices); ++i) bits |= static_cast<uint64_t>(cuda[i]) << i;
  return bits;
}

}  // namespace

DryDevices::DryDevices(const std::vector<bool>& cuda) : before_(marked.exchange(bits_of(cuda))) {}
DryDevices::~DryDevices() { marked = before_; }

bool stands_for_cuda(const at::Tensor& tensor) {
  if (!tensor.is_meta()) return false;
  const auto place = static_cast<std::size_t>(std::max<int>(tensor.device().index(), 0));
  return place < kMostDevices && (marked >> place & 1) != 0;
}

}  // namespace trainer
