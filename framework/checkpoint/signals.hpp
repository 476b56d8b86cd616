/// @file SIGINT, SIGTERM and SIGHUP as a request to stop: the run saves after the current step and says how to go on. A
/// second SIGINT ends the process at once (exit code 130). Free of LibTorch.
#pragma once

namespace trainer::checkpoint {

/// Installs the handlers; call once per process.
void catch_stop_signals();

/// The signal that asked to stop, or 0.
int stop_signal();

}  // namespace trainer::checkpoint
