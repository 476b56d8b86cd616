#include "watch.hpp"

#include <errno.h>  // program_invocation_name

#include <map>
#include <memory>
#include <sstream>

#include "block.hpp"

extern "C" const char __executable_start;

namespace on_cpu {
namespace {

/// Who accessed a byte. Ordered before the present access: by a barrier, by being the same thread or an earlier launch.
struct Stamp {
  uint32_t block = 0, phase = 0;
  uint16_t thread = 0, warp_phase = 0;
};
struct Shadow {
  Stamp write, read, other;  ///< the last ones; `other`: of another thread than `read`
};
struct Area {
  Span span;
  Role role;
  std::unique_ptr<Shadow[]> shadows;
};

constinit bool on = false;  // set before the rest is made
struct Watch {
  std::map<const char*, Area> areas;  // by their end
  Area shared;
  Area* last = nullptr;
} watched;

Area* area_of(const char* at) {
  if (block.shared.holds(at)) return &watched.shared;
  if (watched.last != nullptr && watched.last->span.holds(at)) return watched.last;
  const auto found = watched.areas.upper_bound(at);
  return found != watched.areas.end() && found->second.span.holds(at) ? watched.last = &found->second : nullptr;
}

bool before(const Stamp& stamp) {
  if (stamp.block < block.first_of_launch) return true;
  if (stamp.block != block.number) return false;
  if (stamp.thread == block.current || stamp.phase < block.phase) return true;
  return stamp.thread / kLanes == block.current / kLanes && stamp.warp_phase < block.warp_phase[block.current / kLanes];
}

/// `code`: where in the program, as addr2line takes it.
[[noreturn]] void report(const char* what, const char* at, const void* code) {
  std::ostringstream text;
  text << what << ", ";
  const Area* const area = area_of(at);
  if (area == &watched.shared)
    text << "byte " << at - block.shared.begin << " of shared memory";
  else if (area != nullptr)
    text << "byte " << at - area->span.begin << " of " << area->span.size() << " of an "
         << (area->role == Role::input ? "input" : "output");
  else
    text << "address " << static_cast<const void*>(at);
  if (code != nullptr)
    text << ", by addr2line -Cfie " << program_invocation_name << " 0x" << std::hex
         << static_cast<const char*>(code) - &__executable_start - 1;
  fail(text.str());
}

/// Memory that every thread has for itself, or that all may read.
bool needs_no_watch(const char* at, bool write) {
  if (on_own_stack() || !block.fault.empty() || running_fiber()->stack.holds(at)) return true;
  const auto holds = [&](const void* begin, std::size_t size) {
    return at >= static_cast<const char*>(begin) && at < static_cast<const char*>(begin) + size;
  };
  return !write && (holds(&place, sizeof place) || holds(block.call.data, block.call.size));
}

void note_read(Area& area, Shadow& shadow, const Stamp& self, const char* at, const void* code) {
  const bool in_block = &area == &watched.shared;
  if (area.role == Role::output && shadow.write.block < (in_block ? block.number : block.first_of_launch))
    report("a read of what nobody has written", at, code);
  if (!before(shadow.write)) report("a race: read after write", at, code);
  if (shadow.read.block != self.block || shadow.read.thread != self.thread) shadow.other = shadow.read;
  shadow.read = self;
}
void note_write(Shadow& shadow, const Stamp& self, const char* at, const void* code) {
  if (!before(shadow.write)) report("a race of two writes", at, code);
  if (!before(shadow.read) || !before(shadow.other)) report("a race: write after read", at, code);
  shadow.write = self;
}

void note(const void* where, std::size_t size, bool write, const void* code) {
  const auto* const at = static_cast<const char*>(where);
  if (needs_no_watch(at, write)) return;
  if (block.shared.holds(at) && watched.shared.shadows == nullptr)
    watched.shared = {block.shared, Role::output, std::make_unique<Shadow[]>(block.shared.size())};
  Area* const area = area_of(at);
  if (area == nullptr || at + size > area->span.end)
    report(write ? "a write out of bounds" : "a read out of bounds", at, code);
  if (write && area->role == Role::input) report("a write to an input", at, code);
  const Stamp self{block.number, block.phase, static_cast<uint16_t>(block.current),
                   block.warp_phase[block.current / kLanes]};
  for (std::size_t i = 0; i < size; ++i) {
    Shadow& shadow = area->shadows[static_cast<std::size_t>(at - area->span.begin) + i];
    if (area == &watched.shared)
      for (Stamp* stamp : {&shadow.write, &shadow.read, &shadow.other})
        if (stamp->block != block.number) *stamp = {};  // another block's shared memory is not this one's
    write ? note_write(shadow, self, at + i, code) : note_read(*area, shadow, self, at + i, code);
  }
}

}  // namespace

bool watching() { return on; }

void watch(const void* begin, std::size_t bytes, Role role) {
  const auto* const first = static_cast<const char*>(begin);
  if (on && bytes > 0) watched.areas[first + bytes] = {{first, first + bytes}, role, std::make_unique<Shadow[]>(bytes)};
}
void unwatch(const void* begin, std::size_t bytes) {
  watched.areas.erase(static_cast<const char*>(begin) + bytes);
  watched.last = nullptr;
}

void read_through_cache(const void* at) {
  if (!on) return;
  const Area* const area = area_of(static_cast<const char*>(at));
  if (area != nullptr && area->role == Role::output)
    report("a read through the read-only cache of what the kernel writes", static_cast<const char*>(at), nullptr);
}

}  // namespace on_cpu

// What the compiler calls. The first runs before main, in programs with such kernels alone.
extern "C" {
void __tsan_init() { on_cpu::on = true; }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_read_range(void* at, std::size_t size) { on_cpu::note(at, size, false, __builtin_return_address(0)); }
void __tsan_write_range(void* at, std::size_t size) { on_cpu::note(at, size, true, __builtin_return_address(0)); }
#define ON_CPU_ACCESS(size)                                                                                  \
  void __tsan_read##size(void* at) { on_cpu::note(at, size, false, __builtin_return_address(0)); }           \
  void __tsan_write##size(void* at) { on_cpu::note(at, size, true, __builtin_return_address(0)); }           \
  void __tsan_unaligned_read##size(void* at) { on_cpu::note(at, size, false, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##size(void* at) { on_cpu::note(at, size, true, __builtin_return_address(0)); }
ON_CPU_ACCESS(1)
ON_CPU_ACCESS(2)
ON_CPU_ACCESS(4)
ON_CPU_ACCESS(8)
ON_CPU_ACCESS(16)
}
