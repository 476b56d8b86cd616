/// @file Shape kernels: what an operator allocates on the meta device, for the operators that LibTorch gives none
/// without Python. They are those of the CPU, temporaries inside included, so that a dry run counts what a step does.
#pragma once

#include <planner/byte_counter.hpp>

#include <string>

namespace trainer::planner {

/// Registers them, for the life of the process; again: nothing. Opening the trainer changes no dispatch table: this
/// must be called before the first dry run.
void install_shape_kernels();

/// To be called while an exception is handled. When it says that an operator lacks a shape kernel, or that a value was
/// read: throws Error (failed, NO_SHAPE_KERNEL) that names `who` and the operator. Otherwise throws it again.
[[noreturn]] void explain_dry_failure(const std::string& who);

/// Runs on shapes: installs the kernels and explains what fails.
template <typename Run>
auto on_shapes(const std::string& who, const Run& run) {
  install_byte_counter();
  install_shape_kernels();
  try {
    return run();
  } catch (...) {
    explain_dry_failure(who);
  }
}

}  // namespace trainer::planner
