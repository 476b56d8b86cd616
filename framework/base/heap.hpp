/// @file What becomes of freed memory. A training step asks for the same blocks again and again; by default glibc gives
/// large ones back to the system when they are freed, and every page of the next one costs a fault and is zeroed.
#pragma once

namespace trainer {

/// From now on freed blocks of up to 32 MiB (glibc's limit) stay with the process, up to 2 GiB at the heap's end. Does
/// nothing where malloc is not glibc's, or where the environment sets it: MALLOC_TRIM_THRESHOLD_,
/// MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES. No results depend on it.
void keep_freed_memory();

/// Gives back what is free now; for the end of a phase whose memory the next does not need.
void return_freed_memory();

}  // namespace trainer
