// SwiGLU behind other rows, and gated residuals.
#include "checks.hpp"

namespace trainer::kernels::test {
namespace {

template <typename T>
struct Glu {
  explicit Glu(const GluShape& s)
      : shape(s),
        step(2 * s.width + s.gap),
        all(s.before + s.width),
        x(Role::input, s.rows * step, s.odd == 1),
        before(Role::input, s.rows * (s.before + s.gap), s.odd == 2),
        g(Role::input, s.rows * all, s.odd == 3) {
    x.random(1, 6), before.random(2), g.random(3);
    const float far[] = {-120.0F, 120.0F, -0.0F, -95.0F};  // gates whose exponential overflows or vanishes
    for (int64_t i = 0; i < 4 && s.rows * s.width > 16; ++i) round_to(far[i], &x[i]);
    a = {kDtype<T>, s.rows,          s.width, s.before, x.data(), s.before > 0 ? before.data() : nullptr,
         step,      s.before + s.gap};
    for (int64_t row = 0; row < s.rows; ++row) add_row(row);
    std::ostringstream text;
    text << "swiglu of " << s.rows << " x " << s.width << " behind " << s.before << ", gap " << s.gap << ", odd "
         << s.odd << ": ";
    what = text.str();
  }
  void add_row(int64_t row) {
    for (int64_t i = 0; i < shape.before; ++i) forward.push_back(before.at(row * (shape.before + shape.gap) + i));
    for (int64_t i = 0; i < shape.width; ++i)
      forward.push_back(gate(row, i) * sigmoid(row, i) * x.at(row * step + shape.width + i));
    for (int64_t i = 0; i < shape.width; ++i)
      backward.push_back(g.at(row * all + i) * x.at(row * step + shape.width + i) * sigmoid(row, i) *
                         (1 + gate(row, i) * (1 - sigmoid(row, i))));
    for (int64_t i = 0; i < shape.width; ++i) backward.push_back(g.at(row * all + i) * gate(row, i) * sigmoid(row, i));
  }
  [[nodiscard]] double gate(int64_t row, int64_t i) const { return x.at(row * step + i); }
  [[nodiscard]] double sigmoid(int64_t row, int64_t i) const { return 1 / (1 + std::exp(-gate(row, i))); }

  void check() {
    Buffer<T> y(Role::output, shape.rows * all, shape.odd == 4),
        grad_x(Role::output, shape.rows * 2 * shape.width, shape.odd == 4);
    if (same_in_every_way(what + "forward", {y}, [&] { return cuda().swiglu(&a, y.data(), nullptr); }))
      expect_close<T>(what + "forward", y, forward, kLimit<T>,
                      [&](const CpuKernels& cpu, void* to) { cpu.swiglu(a, to, 0, shape.rows); });
    SwiGlu alone = a;
    alone.before_width = 0, alone.before = nullptr;
    if (same_in_every_way(what + "gradient", {grad_x},
                          [&] { return cuda().swiglu_grad(&alone, g.data(), all, grad_x.data(), nullptr); }))
      expect_close<T>(what + "gradient", grad_x, backward, kLimit<T>, [&](const CpuKernels& cpu, void* to) {
        cpu.swiglu_grad(alone, g.data(), all, to, 0, shape.rows);
      });
  }

  GluShape shape;
  int64_t step, all;
  Buffer<T> x, before, g;
  SwiGlu a{};
  Exact forward, backward;
  std::string what;
};

template <typename T>
struct Gate {
  explicit Gate(const GateShape& s)
      : shape(s),
        rows(s.samples * s.rows),
        x(Role::input, rows * s.width, s.odd == 1),
        y(Role::input, x.count(), s.odd == 2),
        gate(Role::input, s.step * s.samples + s.width, s.odd == 3),
        g(Role::input, x.count(), s.odd == 4) {
    x.random(1), y.random(2), gate.random(3), g.random(4);
    a = {kDtype<T>, rows, s.width, std::max<int64_t>(s.rows, 1), x.data(), gate.data(), y.data(), s.step};
    of_gate.resize(static_cast<std::size_t>(s.samples * s.width));
    for (int64_t i = 0; i < x.count(); ++i) {
      const int64_t sample = i / s.width / s.rows, column = i % s.width;
      forward.push_back(x.at(i) + gate.at(sample * s.step + column) * y.at(i));
      backward.push_back(g.at(i) * gate.at(sample * s.step + column));
      of_gate[static_cast<std::size_t>(sample * s.width + column)] += g.at(i) * y.at(i);
    }
    std::ostringstream text;
    text << "gated_residual of " << s.samples << " x " << s.rows << " x " << s.width << ", step " << s.step << ", odd "
         << s.odd << ": ";
    what = text.str();
  }
  void check() {
    Buffer<T> to(Role::output, x.count(), shape.odd == 5), grad_y(Role::output, x.count(), shape.odd == 5),
        grad_gate(Role::output, shape.samples * shape.width);
    if (same_in_every_way(what + "forward", {to}, [&] { return cuda().gated_residual(&a, to.data(), nullptr); }))
      expect_close<T>(what + "forward", to, forward, kLimit<T>,
                      [&](const CpuKernels& cpu, void* into) { cpu.gated_residual(a, into, 0, rows); });
    if (same_in_every_way(what + "gradient", {grad_y},
                          [&] { return cuda().gated_residual_grad(&a, g.data(), grad_y.data(), nullptr); }))
      expect_close<T>(what + "gradient", grad_y, backward, kLimit<T>,
                      [&](const CpuKernels& cpu, void* into) { cpu.gated_residual_grad(a, g.data(), into, 0, rows); });
    if (rows > 0 && same_in_every_way(what + "sums", {grad_gate}, [&] {
          return cuda().gated_residual_sums(&a, g.data(), grad_gate.data(), nullptr);
        }))
      expect_close<T>(what + "sums", grad_gate, of_gate, kLimit<T>, [&](const CpuKernels& cpu, void* into) {
        cpu.gated_residual_sums(a, g.data(), into, 0, shape.samples * ((shape.width + kColumns - 1) / kColumns));
      });
  }

  GateShape shape;
  int64_t rows;
  Buffer<T> x, y, gate, g;
  GatedResidual a{};
  Exact forward, backward, of_gate;
  std::string what;
};

}  // namespace

template <typename T>
void check_swiglu(const GluShape& shape) {
  Glu<T>(shape).check();
}
template <typename T>
void check_gated_residual(const GateShape& shape) {
  Gate<T>(shape).check();
}
template void check_swiglu<float>(const GluShape&);
template void check_swiglu<Bfloat16>(const GluShape&);
template void check_gated_residual<float>(const GateShape&);
template void check_gated_residual<Bfloat16>(const GateShape&);

}  // namespace trainer::kernels::test
