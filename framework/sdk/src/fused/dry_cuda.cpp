/// @file See dry_cuda.hpp.
#include "dry_cuda.hpp"

#include <algorithm>
#include <atomic>

namespace trainer::fused {
namespace {

constexpr std::size_t kMost = 64;
std::atomic<uint64_t> marked{0};  ///< a bit a device

uint64_t bits_of(const std::vector<bool>& cuda) {
  uint64_t bits = 0;
  for (std::size_t i = 0; i < std::min(cuda.size(), kMost); ++i) bits |= static_cast<uint64_t>(cuda[i]) << i;
  return bits;
}

}  // namespace

DryCuda::DryCuda(const std::vector<bool>& cuda) : before_(marked.exchange(bits_of(cuda))) {}
DryCuda::~DryCuda() { marked = before_; }

bool stands_for_cuda(const at::Tensor& tensor) {
  if (!tensor.is_meta()) return false;
  const auto place = static_cast<std::size_t>(std::max<int>(tensor.device().index(), 0));
  return place < kMost && (marked >> place & 1) != 0;
}

}  // namespace trainer::fused
