#include "block.hpp"

#include <link.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace on_cpu {

Block block;

namespace {

uint64_t draw() {
  block.random ^= block.random << 13, block.random ^= block.random >> 7, block.random ^= block.random << 17;
  return block.random;
}

/// The program's thread-local memory, which holds the __shared__ variables of all kernels.
Span shared_memory() {
  Span found;
  const auto look = [](dl_phdr_info* program, std::size_t, void* to) {
    for (int i = 0; i < program->dlpi_phnum; ++i)
      if (program->dlpi_phdr[i].p_type == PT_TLS && program->dlpi_tls_data != nullptr) {
        const auto* const begin = static_cast<const char*>(program->dlpi_tls_data);
        *static_cast<Span*>(to) = {begin, begin + program->dlpi_phdr[i].p_memsz};
      }
    return 1;  // the program itself comes first, its libraries do not matter
  };
  dl_iterate_phdr(look, &found);
  return found;
}

void pick_next() {
  const auto left = block.ready.begin() + static_cast<std::ptrdiff_t>(block.next);
  if (options.order == Order::random)
    std::iter_swap(left, left + static_cast<std::ptrdiff_t>(draw() % (block.ready.size() - block.next)));
  if (options.order == Order::greedy_down || options.order == Order::greedy_up) {
    block.current = block.ready.back();
    block.ready.pop_back();
  } else {
    block.current = block.ready[block.next++];
  }
}

void live();

/// Goes on with another thread, or home where none can run. `done`: the running fiber's thread has ended.
void leave(bool done) {
  Fiber* const self = running_fiber();
  if (block.next == block.ready.size() || !block.fault.empty()) {
    if (done) give_back(*self);
    return go_home();
  }
  pick_next();
  Thread& next = block.threads[block.current];
  const bool fresh = std::exchange(next.state, State::ready) == State::fresh;
  if (fresh) next.fiber = done ? self : &idle_fiber(live);  // one fiber runs one thread after the other
  if (done && !fresh) give_back(*self);
  if (next.fiber != self) go_on_with(*next.fiber);
  place.thread = {block.current, 0, 0};
}

void live() {
  for (;;) {
    place.thread = {block.current, 0, 0};
    block.call.run(block.call.data);
    block.threads[block.current].state = State::ended;
    ++block.ended;
    leave(true);
  }
}

/// The threads from `first` on whose bits `who` has become ready, in the order of this launch.
template <typename Who>
void release(unsigned first, unsigned count, const Who& who) {
  const bool down = options.order == Order::reverse || options.order == Order::greedy_up;  // greedy takes from the end
  for (unsigned i = 0; i < count; ++i) {
    const unsigned at = first + (down ? count - 1 - i : i);
    if (!who(at)) continue;
    block.threads[at].state = block.threads[at].state == State::fresh ? State::fresh : State::ready;
    block.ready.push_back(at);
  }
}
void release_all() {
  block.ready.clear();
  block.next = 0;
  release(0, static_cast<unsigned>(block.threads.size()), [](unsigned) { return true; });
}

std::string text_of(Where where) {
  const std::string file = where.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(where.line());
}
bool same(Where a, Where b) { return a.line() == b.line() && std::strcmp(a.file_name(), b.file_name()) == 0; }

/// Faults of the running thread's wish to meet the lanes of `mask` and to read `from`.
void require_lanes(unsigned mask, unsigned lane, unsigned lanes, unsigned from, Where where) {
  const auto named = [](unsigned number) { return "lane " + std::to_string(number); };
  if ((mask >> lane & 1) == 0) fail(named(lane) + " is not in its own mask at " + text_of(where));
  if (lanes < kLanes && mask >> lanes != 0) fail("the mask names lanes that the block lacks, at " + text_of(where));
  if (from >= kLanes || (mask >> from & 1) == 0)
    fail(named(lane) + " reads " + named(from) + ", which is not in the mask, at " + text_of(where));
}

/// Waits for the lanes of `mask`; the last to come hands out their bits.
void meet(unsigned mask, uint32_t bits, unsigned from, Where where, bool orders_memory) {
  const unsigned lane = block.current % kLanes, base = block.current - lane;
  const unsigned lanes = std::min(static_cast<unsigned>(block.threads.size()) - base, kLanes);
  require_lanes(mask, lane, lanes, from, where);
  Meeting& meeting = block.meetings[base + static_cast<unsigned>(__builtin_ctz(mask))];
  if (meeting.come == 0) meeting = {mask, 0, where};
  if (meeting.mask != mask || !same(meeting.where, where))
    fail("lanes of a warp meet at different calls or with different masks: " + text_of(meeting.where) + " and " +
         text_of(where));
  Thread& self = block.threads[block.current];
  self.state = State::at_lanes, self.where = where, self.bits = bits, self.from = from;
  meeting.come |= 1U << lane;
  if (meeting.come == mask) {
    meeting.come = 0;
    if (orders_memory) ++block.warp_phase[base / kLanes];
    if (block.next > 4 * kMostThreads) {
      block.ready.erase(block.ready.begin(), block.ready.begin() + static_cast<std::ptrdiff_t>(block.next));
      block.next = 0;
    }
    const auto takes_part = [&](unsigned at) { return (mask >> (at - base) & 1) != 0; };
    for (unsigned at = base; at < base + lanes; ++at)
      if (takes_part(at)) block.threads[at].got = block.threads[base + block.threads[at].from].bits;
    release(base, lanes, takes_part);
  }
  leave(false);
}

/// What the threads wait for that cannot go on.
std::string stuck() {
  std::map<std::string, unsigned> waits;
  for (const Thread& thread : block.threads) {
    if (thread.state == State::at_barrier) ++waits["wait at the barrier " + text_of(thread.where)];
    if (thread.state == State::at_lanes) ++waits["wait for lanes at " + text_of(thread.where)];
  }
  std::string text = "a barrier or shuffle is not reached by all:";
  for (const auto& [what, count] : waits) text += " " + std::to_string(count) + " threads " + what + ",";
  return text + " " + std::to_string(block.ended) + " have ended, of " + std::to_string(block.threads.size());
}

std::string text_of_block() {
  return " (block " + std::to_string(place.block.x) + "," + std::to_string(place.block.y) + "," +
         std::to_string(place.block.z) + ")";
}

void run_block() {
  std::memset(const_cast<char*>(block.shared.begin), 0xff, block.shared.size());
  ++block.number;
  block.phase = block.ended = block.come = 0;
  for (Meeting& meeting : block.meetings) meeting.come = 0;
  for (Thread& thread : block.threads) thread.state = State::fresh;
  release_all();
  leave(false);  // home again when nothing else can run
  if (block.fault.empty() && block.ended < block.threads.size()) block.fault = stuck() + text_of_block();
  if (block.fault.empty()) return;
  forget_fibers();
  throw Fault(std::exchange(block.fault, {}));
}

/// The blocks of a grid, in the order of this launch.
std::vector<uint32_t> order_of_blocks(uint32_t count) {
  std::vector<uint32_t> order(count);
  for (uint32_t i = 0; i < count; ++i) order[i] = options.order == Order::reverse ? count - 1 - i : i;
  if (options.order == Order::random)
    for (uint32_t i = count; i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
  return order;
}

}  // namespace

void fail(const std::string& what) {
  if (block.fault.empty()) block.fault = what + text_of_block() + ", thread " + std::to_string(block.current);
  for (;;) leave(false);
}

void require_aligned(const void* at, std::size_t size) {
  if (reinterpret_cast<uintptr_t>(at) % size != 0)
    fail(std::to_string(size) + " bytes at once are not aligned: " +
         std::to_string(reinterpret_cast<uintptr_t>(at) % size) + " beyond a multiple");
}

void wait_for_block(Where where) {
  if (block.come > 0 && !same(block.barrier, where))
    fail("threads of a block meet at different barriers: " + text_of(block.barrier) + " and " + text_of(where));
  block.barrier = where;
  block.threads[block.current].state = State::at_barrier;
  block.threads[block.current].where = where;
  if (++block.come == block.threads.size()) {
    block.come = 0;
    ++block.phase;
    release_all();
  }
  leave(false);
}

uint32_t exchange(unsigned mask, uint32_t bits, unsigned from, Where where) {
  meet(mask, bits, from, where, false);
  return block.threads[block.current].got;
}
void wait_for_warp(unsigned mask, Where where) { meet(mask, 0, block.current % kLanes, where, true); }

bool launch(dim3 grid, dim3 threads, const Call& call) {
  const auto fits = [](unsigned size, unsigned most) { return size > 0 && size <= most; };
  if (!fits(grid.x, 0x7fffffff) || !fits(grid.y, 65535) || !fits(grid.z, 65535) || !fits(threads.x, kMostThreads) ||
      threads.y != 1 || threads.z != 1)
    return false;
  if (block.shared.begin == nullptr) block.shared = shared_memory();
  grid = {std::min(grid.x, options.most.x), std::min(grid.y, options.most.y), std::min(grid.z, options.most.z)};
  place.grid = grid;
  block.call = call;
  block.first_of_launch = block.number + 1;
  block.random = options.seed * 0x9e3779b97f4a7c15U | 1;
  block.threads.assign(threads.x, {});
  block.meetings.assign((threads.x + kLanes - 1) / kLanes * kLanes, {});
  for (const uint32_t at : order_of_blocks(grid.x * grid.y * grid.z)) {
    place.block = {at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y};
    run_block();
  }
  return true;
}

}  // namespace on_cpu
