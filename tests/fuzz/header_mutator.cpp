// Mutates the JSON of a safetensors file and mends the length in front of it, which random changes would rarely hit.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(uint8_t* data, std::size_t size, std::size_t max_size);

extern "C" std::size_t LLVMFuzzerCustomMutator(uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
  if (size < 8 || max_size < 16 || seed % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  uint64_t length;
  std::memcpy(&length, data, sizeof length);
  const std::size_t header = std::min<uint64_t>(length, size - 8);
  const std::vector<uint8_t> tail(data + 8 + header, data + size);
  if (max_size - 8 <= tail.size()) return LLVMFuzzerMutate(data, size, max_size);
  const std::size_t mutated = LLVMFuzzerMutate(data + 8, header, max_size - 8 - tail.size());
  std::copy(tail.begin(), tail.end(), data + 8 + mutated);
  length = mutated;
  std::memcpy(data, &length, sizeof length);
  return 8 + mutated + tail.size();
}
