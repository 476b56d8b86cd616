/// @file Position and time encodings: tensors made from plain numbers, without weights.
#pragma once

#include <trainer/sdk/tensor.hpp>

#include <vector>

namespace trainer::flux2 {

/// Ids [h*w, 4] int64 of an image: (t, row, column, 0), row by row. Made on the device: a copy from the host would wait
/// for all that the device has still to do, and the host with it.
at::Tensor image_ids(int64_t t, int64_t height, int64_t width, at::Device device);
/// Ids [length, 4] int64 of text: (0, 0, 0, l).
at::Tensor text_ids(int64_t length, at::Device device);

/// Sinusoids [B, channels] fp32 of `scaled` [B] (1000 t): cosines first. The same fp32 operations as diffusers: at
/// guidance 4 the argument is 4000, where one rounding of a frequency moves it by 1e-4.
at::Tensor sinusoid(const at::Tensor& scaled, int64_t channels);

/// Rotary tables of one model.
class Rope {
 public:
  /// `axes`: head dimensions of each id column.
  Rope(const std::vector<int64_t>& axes, double theta, at::Device device);
  /// ids [b, S, 4] -> (cos, sin) [b, S, D/2, 2] fp32 on the device. Angles in fp64, as diffusers computes them.
  [[nodiscard]] at::Tensor table(const at::Tensor& ids) const;

 private:
  at::Tensor frequencies_;  ///< [D/2] fp64
  at::Tensor columns_;      ///< [D/2] int64: the id column that each pair turns with
};

}  // namespace trainer::flux2
