#include "cuda_on_cpu.hpp"

#include <ucontext.h>

#include <vector>

namespace on_cpu {

dim3 thread_of_block, block_of_grid, size_of_grid;

namespace {

constexpr unsigned kWarp = 32;
constexpr std::size_t kStack = 1 << 16;

/// Where threads wait until `count` of them have come.
struct Meeting {
  unsigned count = 0, come = 0, times = 0;
};

struct Thread {
  ucontext_t context{};
  std::vector<char> stack = std::vector<char>(kStack);
  bool done = false;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Meeting> warps;
  Meeting all;
  std::vector<uint32_t> lanes;
  ucontext_t scheduler{};
  const std::function<void()>* body = nullptr;
} block;

void next_turn() { swapcontext(&block.threads[thread_of_block.x].context, &block.scheduler); }

void meet(Meeting& meeting) {
  const unsigned before = meeting.times;
  if (++meeting.come == meeting.count) {
    meeting.come = 0;
    ++meeting.times;
    return;
  }
  while (meeting.times == before) next_turn();
}

void begin() {
  (*block.body)();
  block.threads[thread_of_block.x].done = true;
}

void run_block(unsigned threads) {
  block.all = {threads};
  block.warps.assign((threads + kWarp - 1) / kWarp, {});
  for (unsigned i = 0; i < block.warps.size(); ++i) block.warps[i].count = min(kWarp, threads - i * kWarp);
  block.lanes.assign(threads, 0);
  for (unsigned i = 0; i < threads; ++i) {
    Thread& thread = block.threads[i];
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = thread.stack.size();
    thread.context.uc_link = &block.scheduler;
    thread.done = false;
    makecontext(&thread.context, begin, 0);
  }
  for (bool left = true; left;) {
    left = false;
    for (unsigned i = 0; i < threads; ++i) {
      if (block.threads[i].done) continue;
      left = true;
      thread_of_block = {i};
      swapcontext(&block.scheduler, &block.threads[i].context);
    }
  }
}

}  // namespace

void run(dim3 grid, unsigned threads, const std::function<void()>& body) {
  if (block.threads.size() < threads) block.threads = std::vector<Thread>(threads);
  block.body = &body;
  size_of_grid = grid;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        block_of_grid = {x, y, z};
        run_block(threads);
      }
}

void wait_for_block() { meet(block.all); }

uint32_t exchange(uint32_t bits, unsigned with) {
  const unsigned lane = thread_of_block.x;
  Meeting& warp = block.warps[lane / kWarp];
  block.lanes[lane] = bits;
  meet(warp);
  const uint32_t other = block.lanes[lane ^ with];
  meet(warp);  // nobody writes before all have read
  return other;
}

}  // namespace on_cpu
