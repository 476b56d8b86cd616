/// @file Freed memory stays with the process until it is given back: a step that asks for the same blocks again meets
/// no new pages.
#include <base/heap.hpp>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace trainer {
namespace {

constexpr std::size_t kBlock = 24 << 20;
constexpr int64_t kPages = kBlock / 4096;

int64_t faults() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  return use.ru_minflt;
}

/// Pages met anew while a block is taken, written and freed.
int64_t faults_of_a_block() {
  const int64_t before = faults();
  void* const block = std::malloc(kBlock);
  std::memset(block, 1, kBlock);
  asm volatile("" : : "r"(block) : "memory");  // or the compiler leaves all of it out
  std::free(block);
  return faults() - before;
}

TEST(Heap, FreedBlocksAreUsedAgain) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's malloc";
#endif
  keep_freed_memory();
  faults_of_a_block();
  for (int i = 0; i < 5; ++i) EXPECT_LT(faults_of_a_block(), kPages / 100);
  return_freed_memory();
  const int64_t again = faults_of_a_block();  // pages of 2 MiB make fewer faults
  EXPECT_GT(again, 5) << "the pages were given back";
}

}  // namespace
}  // namespace trainer
