/// @file CUDA kernels run on the CPU: how a launch goes about its threads, and what ends it. Used by cuda_on_cpu.hpp,
/// which kernels are compiled with, and by the tests of the kernels.
///
/// The threads of a block are fibers that take turns in an order that can be chosen; blocks follow each other. What a
/// GPU would not forgive ends a launch with a Fault: a barrier or shuffle that not all reach, lanes that are not in the
/// mask, packs that are not aligned. Before each block, shared memory is filled with NaN. There are no streams, no
/// memory of a device, no atomics and no dynamic shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <stdexcept>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace on_cpu {

struct Fault : std::runtime_error {
  using runtime_error::runtime_error;
};

/// Who comes next. Greedy: a warp goes on as far as it can, the last first (down) or the first (up); fair orders hardly
/// ever let one warp come to its next write while another has not read yet.
enum class Order { forward, reverse, random, greedy_down, greedy_up };

/// Of the next launches. Larger grids become `most`: kernels loop over what a grid leaves.
struct Options {
  Order order = Order::forward;
  uint64_t seed = 1;
  dim3 most{0x7fffffff, 65535, 65535};  ///< the largest that a GPU takes
};
inline Options options;

/// Where the thread is that runs.
struct Place {
  uint3 thread, block;
  dim3 grid;
};
inline constinit Place place{};

/// A kernel with its arguments.
struct Call {
  void (*run)(const void* data);  ///< one thread of it
  const void* data;
  std::size_t size;
};
/// Runs every thread of every block, which have one dimension; false for sizes that a GPU refuses. Throws Fault.
bool launch(dim3 grid, dim3 threads, const Call& call);

using Where = std::source_location;
void wait_for_block(Where where);
void wait_for_warp(unsigned mask, Where where);
/// The bits that the lane `from` of this warp brings to the same call.
uint32_t exchange(unsigned mask, uint32_t bits, unsigned from, Where where);
/// Ends the launch unless `at` is a multiple of `size`.
void require_aligned(const void* at, std::size_t size);

/// Told by watch.hpp where kernels are compiled for it: the read-only cache may not hold what the kernel writes.
void read_through_cache(const void* at);

}  // namespace on_cpu
