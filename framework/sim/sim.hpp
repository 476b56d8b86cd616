/// @file Simulated accelerators: "sim:0", "sim:1", ... on LibTorch's PrivateUse1, in host memory.
///
/// Every operation runs the CPU's own kernel on the same bytes, so results are bit-equal to the CPU. What a real
/// accelerator has and the CPU has not is simulated: memory counted and limited per device, an error when an operation
/// mixes devices, streams, events and clocks. Nothing runs asynchronously.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace trainer::sim {

constexpr int kMaxDevices = 16;

/// Registers the backend. Once per process and before its first backward: autograd then fixes its number of device
/// queues. Replaces the process's CPU allocator, so that host memory is counted too.
void init(int devices);
/// Whether `init` was called, and with how many devices.
int devices();
/// "sim:index".
c10::Device device(int index);

/// Bytes of a device, exact (as asked for, not rounded); -1: the host.
struct Stats {
  int64_t current = 0, peak = 0, allocations = 0, total = 0;
};
Stats stats(int device);
void reset_peak(int device);
/// Beyond it an allocation throws c10::OutOfMemoryError with CUDA's wording; 0: no limit.
void set_capacity(int device, int64_t bytes);
/// Fills memory with 0xFF (NaN) when it is allocated and when it is freed.
void set_poison(bool on);
/// Charges the scratch memory of CPU kernels to the device as well.
void set_count_temporaries(bool on);

/// The cost model of the virtual clocks: an operation takes launch + max(flops / rate, bytes / rate) on the current
/// stream of its device; a copy between memories takes latency + bytes / link on both streams and on the link.
struct Cost {
  double flops = 1e14, bytes = 1e12;  ///< per second
  double launch = 0;                  ///< seconds
  double link = 1e10;                 ///< bytes per second, each direction of each pair of memories on its own
  double link_latency = 1e-5;         ///< seconds
};
constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// One operation or copy. A copy is named "copy:<from>><to>", -1 being the host.
struct Event {
  int device = 0;
  int64_t stream = 0;
  std::string op;
  double start = 0, end = 0;  ///< seconds
  int64_t bytes = 0;
  double flops = 0;
  [[nodiscard]] bool is_copy() const { return op.starts_with("copy:"); }
};

/// Turns clocks and log on.
void set_timeline(bool on);
void set_cost(const Cost& cost);
/// All clocks to zero; log, races and waits emptied.
void reset_clocks();
/// When the last operation of all devices ends.
double makespan();
/// Seconds in which a device computes (copies between memories left out). Empties nothing.
double busy(int device);
/// Empties and returns the log, in the order of issue.
std::vector<Event> take_log();
/// Operations that read a tensor on a stream that had not waited for the stream that writes it: on a real device they
/// may read what was there before. Empties the list.
std::vector<std::string> take_races();
/// Blocks that were freed while a stream that neither allocated nor recorded them (Tensor::record_stream) still used
/// them: on a real device what is allocated next may overwrite them. Empties the list.
std::vector<std::string> take_early_reuses();
/// Operations and copies for whose end the host waited before it gave out more work: reads of values, and copies
/// between host and device that were blocking or of memory that is not page-locked. Empties the list.
std::vector<std::string> take_waits();

}  // namespace trainer::sim
