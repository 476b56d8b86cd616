/// @file silu(gate) up on the CPU, written behind rows that it is to be joined with. Keeps its input alone. Included by
/// level.cpp alone.
#pragma once

#include <kernels/cpu.hpp>
#include <kernels/cpu/exponential.hpp>

namespace trainer::kernels {
namespace {

template <typename T>
struct GateRows {
  using P = Pack<T>;
  using V = typename P::V;

  static void forward(const SwiGlu& a, void* result, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gate = static_cast<const T*>(a.x) + row * a.x_step;
      const T* up = gate + a.width;
      T* y = static_cast<T*>(result) + row * (a.before_width + a.width);
      if (a.before_width > 0)
        std::memcpy(y, static_cast<const T*>(a.before) + row * a.before_step,
                    static_cast<std::size_t>(a.before_width) * sizeof(T));
      y += a.before_width;
      for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
        const V g = load<P>(gate + i, count);
        store<P>(y + i, g / (exponential(-g) + 1) * load<P>(up + i, count), count);
      });
    }
  }

  /// With s = sigmoid(gate): grad_gate = grad up s (1 + gate (1 - s)), grad_up = grad gate s.
  static void grad(const SwiGlu& a, const void* grads, int64_t grad_step, void* result, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gate = static_cast<const T*>(a.x) + row * a.x_step;
      const T* up = gate + a.width;
      const T* from = static_cast<const T*>(grads) + row * grad_step;
      T* grad_gate = static_cast<T*>(result) + row * 2 * a.width;
      T* grad_up = grad_gate + a.width;
      for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
        const V g = load<P>(gate + i, count), d = load<P>(from + i, count);
        const V s = 1 / (exponential(-g) + 1);
        store<P>(grad_gate + i, d * load<P>(up + i, count) * (s * (g * (1 - s) + 1)), count);
        store<P>(grad_up + i, d * (g * s), count);
      });
    }
  }
};

}  // namespace
}  // namespace trainer::kernels
