/// @file Parts of one buffer.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trainer::kernels {
namespace {

/// Hands out parts of a buffer on 64 bytes, or counts them where there is none.
class Carve {
 public:
  explicit Carve(void* buffer) : begin_(static_cast<std::byte*>(buffer)) {}
  template <typename T>
  T* take(int64_t count) {
    std::byte* const part = begin_ == nullptr ? nullptr : begin_ + used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return reinterpret_cast<T*>(part);
  }
  [[nodiscard]] int64_t used() const { return used_; }

 private:
  std::byte* begin_;
  int64_t used_ = 0;
};

}  // namespace
}  // namespace trainer::kernels
