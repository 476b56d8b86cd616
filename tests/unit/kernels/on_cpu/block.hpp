/// @file The block of threads that runs, as block.cpp keeps it and watch.cpp looks at it.
#pragma once

#include <string>
#include <vector>

#include "fibers.hpp"
#include "launch.hpp"

namespace on_cpu {

constexpr unsigned kLanes = 32, kMostThreads = 1024;

enum class State { fresh, ready, at_barrier, at_lanes, ended };
struct Thread {
  Fiber* fiber;
  State state;
  Where where;    ///< it waits
  unsigned from;  ///< the lane whose bits it wants
  uint32_t bits, got;
};
/// Lanes of a warp that come to the same call; kept by the first of their mask.
struct Meeting {
  unsigned mask = 0, come = 0;
  Where where;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Meeting> meetings;
  std::vector<unsigned> ready;  ///< from `next` on
  std::size_t next = 0;
  unsigned current = 0, come = 0, ended = 0;
  Where barrier;      ///< that the first of `come` reached
  std::string fault;  ///< empty: none yet
  Call call{};
  Span shared;  ///< memory of the block
  uint64_t random = 1;
  // What orders accesses: blocks are numbered on from launch to launch, phases end at barriers.
  uint32_t number = 0, first_of_launch = 0, phase = 0;
  uint16_t warp_phase[kMostThreads / kLanes]{};
};
extern Block block;

/// Notes the fault, with where it happened, and goes on with nothing of this launch.
[[noreturn]] void fail(const std::string& what);

}  // namespace on_cpu
