// Modulated LayerNorm, and heads that are normed and turned.
#include "checks.hpp"

namespace trainer::kernels::test {
namespace {

struct NormExact {
  Exact forward, backward, of_shift, of_scale, moments;
};

/// The parts of `e` that come from one row.
template <typename Data>
void add_row(const Data& d, const NormShape& s, int64_t row, NormExact& e) {
  const int64_t sample = row / s.rows, at = row * s.width;
  const auto each = static_cast<double>(s.width);
  double mean = 0, variance = 0, mean_u = 0, mean_un = 0;
  for (int64_t i = 0; i < s.width; ++i) mean += d.x.at(at + i) / each;
  for (int64_t i = 0; i < s.width; ++i) variance += (d.x.at(at + i) - mean) * (d.x.at(at + i) - mean) / each;
  const double inverse = 1 / std::sqrt(variance + d.a.eps);
  const auto normal = [&](int64_t i) { return (d.x.at(at + i) - mean) * inverse; };
  const auto factor = [&](int64_t i) { return d.scale.at(sample * s.step + i) + 1; };
  for (int64_t i = 0; i < s.width; ++i) {
    mean_u += d.g.at(at + i) * factor(i) / each;
    mean_un += d.g.at(at + i) * factor(i) * normal(i) / each;
  }
  e.moments.push_back(mean);
  e.moments.push_back(inverse);
  for (int64_t i = 0; i < s.width; ++i) {
    e.forward.push_back(normal(i) * factor(i) + d.shift.at(sample * s.step + i));
    e.backward.push_back((d.g.at(at + i) * factor(i) - mean_u - normal(i) * mean_un) * inverse);
    e.of_shift[static_cast<std::size_t>(sample * s.width + i)] += d.g.at(at + i);
    e.of_scale[static_cast<std::size_t>(sample * s.width + i)] += d.g.at(at + i) * normal(i);
  }
}

template <typename T>
struct Norm {
  explicit Norm(const NormShape& s)
      : shape(s),
        rows(s.samples * s.rows),
        shared(s.samples * s.width),
        x(Role::input, rows * s.width, s.offset),
        shift(Role::input, s.step * s.samples + s.width, s.offset),
        scale(Role::input, shift.count(), s.offset),
        g(Role::input, x.count(), s.offset) {
    x.random(1, 2, s.middle), shift.random(2), scale.random(3), g.random(4);
    a = {kDtype<T>,    rows,   s.width, std::max<int64_t>(s.rows, 1), 1e-6, x.data(), shift.data(),
         scale.data(), s.step, s.step};
    exact.of_shift.resize(static_cast<std::size_t>(shared));
    exact.of_scale = exact.of_shift;
    for (int64_t row = 0; row < rows; ++row) add_row(*this, s, row, exact);
    std::ostringstream text;
    text << "modulated_norm of " << s.samples << " x " << s.rows << " x " << s.width << ", step " << s.step
         << ", offset " << s.offset << ", about " << s.middle << ": ";
    what = text.str();
    // What is left of numbers far from 0 has lost digits.
    if (s.middle != 0) limit *= 30;
  }
  void rows_of_it() {
    Buffer<T> y(Role::output, x.count(), shape.offset), grad_x(Role::output, x.count(), shape.offset);
    Buffer<float> moments(Role::output, 2 * rows);
    if (same_in_every_way(what + "forward", {y}, [&] { return cuda().modulated_norm(&a, y.data(), nullptr); }))
      expect_close<T>(what + "forward", y, exact.forward, limit,
                      [&](const CpuKernels& cpu, void* to) { cpu.modulated_norm(a, to, 0, rows); });
    if (same_in_every_way(what + "gradient alone", {grad_x},
                          [&] { return cuda().modulated_norm_grad(&a, g.data(), grad_x.data(), nullptr, nullptr); }))
      expect_close<T>(what + "gradient", grad_x, exact.backward, limit, [&](const CpuKernels& cpu, void* to) {
        cpu.modulated_norm_grad(a, g.data(), to, nullptr, 0, rows);
      });
    const std::vector<unsigned char> alone(grad_x.begin(), grad_x.end());
    if (!same_in_every_way(what + "gradient, moments", {grad_x, moments}, [&] {
          return cuda().modulated_norm_grad(&a, g.data(), grad_x.data(), moments.data(), nullptr);
        }))
      return;
    EXPECT_TRUE(std::equal(grad_x.begin(), grad_x.end(), alone.begin())) << what << "other bits where moments are kept";
    expect_close<float>(what + "moments", moments, exact.moments, kLimit<float>, [&](const CpuKernels& cpu, void* to) {
      std::vector<T> unused(static_cast<std::size_t>(x.count()) + 1);
      cpu.modulated_norm_grad(a, g.data(), unused.data(), to, 0, rows);
    });
  }
  void sums_of_it() {
    Buffer<T> of_shift(Role::output, shared, shape.offset), of_scale(Role::output, shared, shape.offset);
    Buffer<float> moments(Role::input, 2 * rows);
    for (int64_t i = 0; i < 2 * rows; ++i) moments[i] = static_cast<float>(exact.moments[static_cast<std::size_t>(i)]);
    const int64_t units = shape.samples * ((shape.width + kColumns - 1) / kColumns);
    const auto sums = [&](void* to_shift, void* to_scale) {
      return cuda().modulated_norm_sums(&a, g.data(), moments.data(), to_shift, to_scale, nullptr);
    };
    const auto run = [&](const CpuKernels& cpu, void* to_shift, void* to_scale) {
      cpu.modulated_norm_sums(a, g.data(), moments.data(), to_shift, to_scale, 0, units);
    };
    same_in_every_way(what + "shift alone", {of_shift}, [&] { return sums(of_shift.data(), nullptr); });
    same_in_every_way(what + "scale alone", {of_scale}, [&] { return sums(nullptr, of_scale.data()); });
    if (!same_in_every_way(what + "sums", {of_shift, of_scale}, [&] { return sums(of_shift.data(), of_scale.data()); }))
      return;
    expect_close<T>(what + "shift", of_shift, exact.of_shift, kLimit<T>,
                    [&](const CpuKernels& cpu, void* to) { run(cpu, to, nullptr); });
    expect_close<T>(what + "scale", of_scale, exact.of_scale, limit,
                    [&](const CpuKernels& cpu, void* to) { run(cpu, nullptr, to); });
  }

  NormShape shape;
  int64_t rows, shared;
  Buffer<T> x, shift, scale, g;
  ModulatedNorm a{};
  NormExact exact;
  std::string what;
  double limit = kLimit<T>;
};

struct RopeExact {
  Exact forward, backward, of_weight;
};

/// The parts of `e` that come from a head of a token.
template <typename Data>
void add_head(const Data& d, const HeadShape& s, int64_t token, int64_t head, RopeExact& e) {
  const int64_t from = token * d.step + head * s.width, turn = (s.own_tables ? token : token % s.tokens) * s.width;
  double squares = 0, mean = 0;
  for (int64_t i = 0; i < s.width; ++i) squares += d.x.at(from + i) * d.x.at(from + i) / static_cast<double>(s.width);
  const double inverse = 1 / std::sqrt(squares + d.a.eps);
  const auto normal = [&](int64_t i) { return d.x.at(from + i) * inverse; };
  Exact back;
  for (int64_t i = 0; i < s.width; i += 2) {
    const double c = d.table.at(turn + i), z = d.table.at(turn + i + 1), g = d.g.at(from + i), h = d.g.at(from + i + 1);
    const double first = normal(i) * d.weight.at(i), second = normal(i + 1) * d.weight.at(i + 1);
    e.forward[static_cast<std::size_t>(from + i)] = first * c - second * z;
    e.forward[static_cast<std::size_t>(from + i + 1)] = second * c + first * z;
    back.push_back(g * c + h * z);
    back.push_back(h * c - g * z);
  }
  for (int64_t i = 0; i < s.width; ++i) {
    const double b = back[static_cast<std::size_t>(i)];
    e.of_weight[static_cast<std::size_t>(token / kTokens * s.width + i)] += b * normal(i);
    mean += b * d.weight.at(i) * normal(i) / static_cast<double>(s.width);
  }
  for (int64_t i = 0; i < s.width; ++i)
    e.backward.push_back((back[static_cast<std::size_t>(i)] * d.weight.at(i) - normal(i) * mean) * inverse);
}

template <typename T>
struct Rope {
  explicit Rope(const HeadShape& s)
      : shape(s),
        tokens(s.samples * s.tokens),
        step(s.heads * s.width + s.gap),
        parts((tokens + kTokens - 1) / kTokens),
        x(Role::input, tokens * step, s.odd == 1),
        weight(Role::input, s.width, s.odd == 2),
        g(Role::input, tokens * step, s.odd == 3),
        table(Role::input, (s.own_tables ? s.samples : 1) * s.tokens * s.width, s.odd == 4) {
    x.random(1, 2, 0.5), weight.random(2), g.random(3);
    for (int64_t i = 0; i < table.count(); i += 2) {
      const double angle = static_cast<double>(mixed(static_cast<uint64_t>(i)) % 10000) / 1000;
      table[i] = static_cast<float>(std::cos(angle)), table[i + 1] = static_cast<float>(std::sin(angle));
    }
    a = {kDtype<T>,    s.samples,
         s.tokens,     s.heads,
         s.width,      1e-6,
         x.data(),     weight.data(),
         table.data(), s.tokens * step,
         step,         s.tokens * step,
         step,         s.own_tables ? s.tokens * s.width : 0};
    T pattern;  // what lies between tokens is not touched
    std::memset(static_cast<void*>(&pattern), Result::kPattern, sizeof pattern);
    exact.forward.assign(static_cast<std::size_t>(tokens * step), to_float(pattern));
    exact.of_weight.resize(static_cast<std::size_t>(parts * s.width));
    for (int64_t token = 0; token < tokens; ++token)
      for (int64_t head = 0; head < s.heads; ++head) add_head(*this, s, token, head, exact);
    std::ostringstream text;
    text << "norm_rope of " << s.samples << " x " << s.tokens << " x " << s.heads << " x " << s.width << ", odd "
         << s.odd << ", gap " << s.gap << ": ";
    what = text.str();
  }
  void check() {
    Buffer<T> y(Role::output, tokens * step, shape.odd == 5),
        grad_x(Role::output, tokens * shape.heads * shape.width, shape.odd == 5);
    Buffer<float> partial(Role::output, parts * shape.width);
    if (same_in_every_way(what + "forward", {y}, [&] { return cuda().norm_rope(&a, y.data(), nullptr); }))
      expect_close<T>(what + "forward", y, exact.forward, kLimit<T>,
                      [&](const CpuKernels& cpu, void* to) { cpu.norm_rope(a, to, 0, tokens); });
    if (same_in_every_way(what + "gradient", {grad_x},
                          [&] { return cuda().norm_rope_grad(&a, g.data(), grad_x.data(), nullptr); }))
      expect_close<T>(what + "gradient", grad_x, exact.backward, kLimit<T>,
                      [&](const CpuKernels& cpu, void* to) { cpu.norm_rope_grad(a, g.data(), to, 0, tokens); });
    if (same_in_every_way(what + "sums", {partial},
                          [&] { return cuda().norm_rope_sums(&a, g.data(), partial.data(), nullptr); }))
      expect_close<float>(what + "sums", partial, exact.of_weight, kLimit<float>,
                          [&](const CpuKernels& cpu, void* to) { cpu.norm_rope_sums(a, g.data(), to, 0, parts); });
  }

  HeadShape shape;
  int64_t tokens, step, parts;
  Buffer<T> x, weight, g;
  Buffer<float> table;
  NormRope a{};
  RopeExact exact;
  std::string what;
};

}  // namespace

template <typename T>
void check_modulated_norm(const NormShape& shape) {
  Norm<T> norm(shape);
  norm.rows_of_it();
  if (norm.rows > 0) norm.sums_of_it();
}
template <typename T>
void check_modulated_norm_sums(const NormShape& shape) {
  Norm<T>(shape).sums_of_it();
}
template <typename T>
void check_norm_rope(const HeadShape& shape) {
  Rope<T>(shape).check();
}
template void check_modulated_norm<float>(const NormShape&);
template void check_modulated_norm<Bfloat16>(const NormShape&);
template void check_modulated_norm_sums<float>(const NormShape&);
template void check_modulated_norm_sums<Bfloat16>(const NormShape&);
template void check_norm_rope<float>(const HeadShape&);
template void check_norm_rope<Bfloat16>(const HeadShape&);

}  // namespace trainer::kernels::test
