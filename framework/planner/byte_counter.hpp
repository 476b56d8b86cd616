/// @file Counts the bytes of tensors where they are allocated: what is held now, and the highest since a mark. Host
/// memory and the meta device (dry runs) are counted by allocators of our own, GPUs by their caching allocator.
///
/// Dry runs have several devices: "meta:0", "meta:1", ... are told apart once the counter is installed. As with other
/// accelerators a tensor lies where its options say, else on the current device of the thread (c10::DeviceGuard).
///
/// Exact: the bytes that were asked for, without rounding. Not counted: mapped files, what a library takes from malloc
/// itself (thread stacks, some buffers inside kernels), and host tensors made before the counter was installed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trainer::planner {

/// Most devices of a dry run.
constexpr int64_t kDryDevices = 64;

/// Starts counting, for the life of the process; again: nothing. Costs an atomic addition for every tensor made or
/// freed.
void install_byte_counter();

struct ByteUse {
  int64_t current = 0, peak = 0;
};

/// Device "meta:N" is the N-th device of a dry run; an index of -1 means 0. GPUs: what their allocator handed out
/// (rounded to 512); 0 before the GPU was first used.
ByteUse bytes_in_use(at::Device device);

/// The highest use of one device since construction. May be nested; the peak of an outer mark includes its inner ones.
/// One thread at a time makes and ends marks.
class PeakMark {
 public:
  explicit PeakMark(at::Device device);
  ~PeakMark();
  PeakMark(const PeakMark&) = delete;
  PeakMark& operator=(const PeakMark&) = delete;
  [[nodiscard]] int64_t begin() const { return begin_; }                                 ///< held at construction
  [[nodiscard]] int64_t peak() const { return bytes_in_use(device_).peak; }              ///< absolute
  [[nodiscard]] int64_t above() const { return peak() - begin_; }                        ///< peak above `begin`
  [[nodiscard]] int64_t held() const { return bytes_in_use(device_).current - begin_; }  ///< since construction

 private:
  at::Device device_;
  int64_t begin_, outer_peak_;
};

/// Meta tensors that this thread makes are not counted as long as it lives: they stand for a mapped file.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;

 private:
  bool before_;
};

}  // namespace trainer::planner
