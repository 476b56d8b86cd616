#include "fibers.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <boost/context/detail/fcontext.hpp>
#include <deque>
#include <new>
#include <vector>

// AddressSanitizer follows fibers that it is told of; only where the kernels are compiled for it is it there.
extern "C" {
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** keep, const void* stack, std::size_t size);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* kept, const void** stack, std::size_t* size);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* begin, std::size_t size);
}

namespace on_cpu {
namespace {

// boost::context::fiber unwinds a stack that it drops, which kernels cannot; these two functions are what is below it.
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr std::size_t kMost = 1024, kStack = std::size_t{1} << 18;
constexpr std::size_t kStride = kStack + std::size_t{17} * 64;  // not all in the same places of the caches

struct Fibers {
  Fiber home, *running = &home;
  std::deque<Fiber> made;
  std::vector<Fiber*> idle;
  char* memory = nullptr;
  void (*live)() = nullptr;
} fibers;

void arrive(transfer_t came) { static_cast<Fiber*>(came.data)->context = came.fctx; }

void begin(transfer_t came) {
  arrive(came);
  if (__sanitizer_finish_switch_fiber != nullptr) __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
  fibers.live();
}

/// The home fiber's, for AddressSanitizer.
Span stack_of_thread() {
  pthread_attr_t attributes;
  void* begin = nullptr;
  std::size_t size = 0;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &begin, &size);
  pthread_attr_destroy(&attributes);
  return {static_cast<char*>(begin), static_cast<char*>(begin) + size};
}

char* memory_of_stacks() {
  void* const memory =
      mmap(nullptr, kStride * kMost, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  fibers.home.stack = stack_of_thread();
  return static_cast<char*>(memory);
}

}  // namespace

Fiber* running_fiber() { return fibers.running; }
bool on_own_stack() { return fibers.running == &fibers.home; }

void go_on_with(Fiber& to) {
  Fiber& from = *fibers.running;
  fibers.running = &to;
  if (__sanitizer_start_switch_fiber != nullptr)
    __sanitizer_start_switch_fiber(&from.sanitizer, to.stack.begin, to.stack.size());
  arrive(jump_fcontext(to.context, &from));
  if (__sanitizer_finish_switch_fiber != nullptr) __sanitizer_finish_switch_fiber(from.sanitizer, nullptr, nullptr);
}
void go_home() { go_on_with(fibers.home); }

Fiber& idle_fiber(void (*live)()) {
  fibers.live = live;
  if (!fibers.idle.empty()) {
    Fiber& fiber = *fibers.idle.back();
    fibers.idle.pop_back();
    return fiber;
  }
  if (fibers.memory == nullptr) fibers.memory = memory_of_stacks();
  Fiber& fiber = fibers.made.emplace_back();
  char* const at = fibers.memory + (fibers.made.size() - 1) * kStride;
  fiber.stack = {at, at + kStack};
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(at, kStack);  // of one that was forgotten
  fiber.context = make_fcontext(at + kStack, kStack, &begin);
  return fiber;
}
void give_back(Fiber& fiber) { fibers.idle.push_back(&fiber); }

void forget_fibers() {
  fibers.made.clear();
  fibers.idle.clear();
}

}  // namespace on_cpu
