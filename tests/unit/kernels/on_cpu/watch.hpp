/// @file A look at every access of the kernels to memory. They are compiled with -fsanitize=thread, which makes the
/// compiler call the functions of watch.cpp, and linked without that sanitizer's library. Faults are, by byte:
///   * accesses outside of the buffers named here, of shared memory, of the arguments and of the thread's own stack;
///   * writes to inputs, reads of outputs and of shared memory that nobody has written;
///   * reads through the read-only cache of what the kernel may write;
///   * races: two threads at one place, one of them writes, and no barrier between them (between blocks there is none).
/// Where kernels are compiled otherwise, nothing is looked at.
#pragma once

#include <cstddef>

namespace on_cpu {

enum class Role { input, output };

/// Whether the kernels of this program are compiled for it.
bool watching();
/// Kernels may use this memory from now on. What an output holds counts as unwritten in every launch.
void watch(const void* begin, std::size_t bytes, Role role);
void unwatch(const void* begin, std::size_t bytes);

}  // namespace on_cpu
