#include <base/heap.hpp>

#include <cstdlib>
#include <initializer_list>
#include <limits>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace trainer {

void keep_freed_memory() {
#ifdef __GLIBC__
  for (const char* asked : {"GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"})
    if (std::getenv(asked) != nullptr) return;
  constexpr int kLargest = 32 << 20;  // with more mallopt refuses
  mallopt(M_MMAP_THRESHOLD, kLargest);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

void return_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace trainer
