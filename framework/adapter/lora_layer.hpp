/// @file A low-rank pair of one layer as LoRA files hold it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace trainer::adapter {

/// y += alpha / rank * up (down x).
struct LoraLayer {
  std::string layer;  ///< canonical name
  at::Tensor down;    ///< [rank, in]
  at::Tensor up;      ///< [out, rank]
  double alpha = 0;
  [[nodiscard]] int64_t rank() const { return down.size(0); }
  [[nodiscard]] double scale() const { return alpha / static_cast<double>(rank()); }
};

}  // namespace trainer::adapter
