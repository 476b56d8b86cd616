/// @file Allocators of the simulated devices and of the host: one block header, one counter per memory.
#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <cstdint>

namespace trainer::sim {

constexpr auto kSim = c10::DeviceType::PrivateUse1;

/// A stream on which a block was used, other than the one that it was allocated on.
struct BlockUse {
  int64_t stream = 0;
  double end = 0;         ///< virtual time at which the last use is over
  bool recorded = false;  ///< by record_stream: the block stays until then
};
constexpr std::size_t kMostUses = 4;  ///< of different streams, noted for a block

/// In front of every block; the deleter knows from it whom to credit, whichever thread frees.
struct alignas(64) BlockHeader {
  std::size_t bytes = 0;
  int device = -1;      ///< -1: host
  int epoch = 0;        ///< of the clocks that `ready` belongs to
  bool pinned = false;  ///< page-locked host memory
  double ready = 0;     ///< virtual time at which the contents are complete
  int64_t stream = 0;   ///< on which it was allocated, and which may use its memory again as soon as it is freed
  std::array<BlockUse, kMostUses> uses{};
};

/// The header of a block made here, or null for memory of others.
BlockHeader* header_of(const c10::DataPtr& data);
/// The deleter of every block.
void release(void* data);
/// Books the bytes of a block from its memory to that of `device`.
void move_charge(BlockHeader& header, int device);

c10::Allocator& host_allocator();
/// Of page-locked host memory; all of it is counted as the host's.
c10::Allocator& pinned_allocator();
/// Whether a block of it begins at `data`.
bool is_pinned(const void* data);
c10::Allocator& device_allocator();
/// Registers both with LibTorch.
void install_allocators();

/// Current device of this thread, as cudaGetDevice.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);

/// As long as it lives, host allocations of this thread are charged to the device (when temporaries are counted).
class ChargeTemporaries {
 public:
  explicit ChargeTemporaries(int device);
  ~ChargeTemporaries();
  ChargeTemporaries(const ChargeTemporaries&) = delete;
  ChargeTemporaries& operator=(const ChargeTemporaries&) = delete;

 private:
  int before_;
};

}  // namespace trainer::sim
