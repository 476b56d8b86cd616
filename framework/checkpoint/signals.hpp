/// @file SIGINT, SIGTERM and SIGHUP as a request to stop: the run saves after the current step and says how to go on. A
/// second SIGINT ends the process at once (exit code 130). SIGINT or SIGHUP that whoever started the program has
/// ignored, as nohup does, stays ignored. Free of LibTorch.
///
/// A thread of its own waits for them, and no other gets them: oneDNN's fp32 products (LibTorch 2.11) keep values below
/// the stack's end, where the frame of a signal handler is put, and then write to wrong addresses.
#pragma once

namespace trainer::checkpoint {

/// From here on the calling thread, and those that it starts, leave these signals to the thread that waits for them. To
/// be called before anything computes; what comes after the first call has no effect.
void catch_stop_signals();

/// The signal that asked to stop, or 0.
int stop_signal();

}  // namespace trainer::checkpoint
