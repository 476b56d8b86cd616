// What parsing a header takes in memory and time, whatever it claims. Counts all that this program allocates.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>

#include "corpus.hpp"

namespace {

std::atomic<int64_t> held{0}, peak{0};

[[maybe_unused]] void* counted(std::size_t bytes) {
  void* place = std::malloc(bytes == 0 ? 1 : bytes);
  if (place == nullptr) throw std::bad_alloc();
  const int64_t now = held += static_cast<int64_t>(::malloc_usable_size(place));
  if (now > peak) peak = now;
  return place;
}

[[maybe_unused]] void released(void* place) {
  if (place != nullptr) held -= static_cast<int64_t>(::malloc_usable_size(place));
  std::free(place);
}

}  // namespace

// The address sanitizer has its own, which see more.
#ifndef __SANITIZE_ADDRESS__
void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* place) noexcept { released(place); }
void operator delete[](void* place) noexcept { released(place); }
void operator delete(void* place, std::size_t) noexcept { released(place); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return counted(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete[](void* place, std::size_t) noexcept { released(place); }
void operator delete(void* place, const std::nothrow_t&) noexcept { released(place); }
#endif

namespace trainer::weights {
namespace {

/// As the models that are trained have them: 100,000 tensors in two dimensions, with names of 50 characters.
std::string many_tensors() {
  std::string json = "{";
  for (int i = 0; i < 100'000; ++i) {
    const std::string number = std::to_string(1'000'000 + i);
    json +=
        (i == 0 ? "" : ",") + corpus::entry("transformer.transformer_blocks." + number + ".attn.weight", "BF16",
                                            "[1,1]", 2 * static_cast<uint64_t>(i), 2 * static_cast<uint64_t>(i) + 2);
  }
  return json + "}";
}

TEST(Header, ParsesInFourTimesItsSize) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "allocations are the sanitizer's";
#endif
  for (const std::string& json :
       {many_tensors(), "{\"__metadata__\":{\"k\":\"" + std::string(15 << 20, 'v') + "\"}}"}) {
    const std::size_t data = json.size() < (15U << 20) ? 200'000 : 0;
    const std::string bytes = corpus::with_length(json.size(), json);
    const int64_t before = held;
    peak = before;
    const auto start = std::chrono::steady_clock::now();
    const Header header = parse_header(bytes, bytes.size() + data, "x");
    const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_TRUE(header.entries.size() == 100'000 || header.metadata.size() == 1);
    const double times = static_cast<double>(peak - before) / static_cast<double>(json.size());
    std::printf("%zu bytes of header: %.2f times as much memory, %.2f s\n", json.size(), times, seconds);
    EXPECT_LE(times, 4);
    EXPECT_LE(seconds, 20) << "a second at most where it is optimised";
  }
}

}  // namespace
}  // namespace trainer::weights
