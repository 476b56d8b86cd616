/// @file Stacks of their own, between which one thread of the CPU goes to and fro. Used by block.cpp.
#pragma once

#include <cstddef>

namespace on_cpu {

struct Span {
  const char *begin = nullptr, *end = nullptr;
  [[nodiscard]] bool holds(const void* at) const { return at >= begin && at < end; }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(end - begin); }
};

struct Fiber {
  Span stack;
  void* context = nullptr;
  void* sanitizer = nullptr;  ///< what AddressSanitizer keeps of it
};

/// The fiber that runs: at first the one of the thread itself.
Fiber* running_fiber();
bool on_own_stack();  ///< the thread's, not a fiber's
/// Leaves the running fiber until another goes on with it.
void go_on_with(Fiber& fiber);
void go_home();

/// One that will call live(), which never returns.
Fiber& idle_fiber(void (*live)());
/// The fiber is about to be left and has nothing more to do: another of idle_fiber() may be it.
void give_back(Fiber& fiber);
/// Those that are in the middle of something are never gone on with.
void forget_fibers();

}  // namespace on_cpu
