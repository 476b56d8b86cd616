/// @file The fused operations and the kernels for 8-bit weights at FLUX.2-dev's sizes: how far from fp64, and how fast
/// beside a copy of memory. Each leaves its figures in the test's results, for the report of tools/gpu_check. On the
/// CPU, where it is a dry run, a few rows.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <support/device.hpp>
#include <trainer/sdk/ops/fused.hpp>

#include <chrono>
#include <functional>
#include <iomanip>
#include <sstream>
#include <trainer/sdk/eight_bit_weights.hpp>
#include <w8a8/w8a8_weight.hpp>

#include "../unit/fused/operations.hpp"

namespace trainer::test {
namespace {

using testing::test_device;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kWidth = 6144, kHeads = 48, kMlp = 18432, kRank = 32;

/// Between -1 and 1, the same every time, made on the device.
at::Tensor numbers(at::IntArrayRef shape, double seed, at::ScalarType dtype = at::kBFloat16) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const auto options = at::TensorOptions(at::kDouble).device(test_device());
  return at::sin(at::arange(count, options) * (12.9898 + seed) + seed).reshape(shape).to(dtype);
}

/// Seconds of one call, of as many as take a while.
double seconds_of(const std::function<void()>& call) {
  const auto* const device = c10::impl::getDeviceGuardImpl(test_device().type());
  const auto finish = [&] {
    if (!test_device().is_cpu()) device->synchronizeDevice(test_device().index());
  };
  const int times = test_device().is_cpu() ? 1 : 20;
  call();  // the first chooses and allocates
  finish();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) call();
  finish();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / times;
}

double bytes_of(const Tensors& tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

/// Bytes a second that a copy reads and writes.
double copy_rate() {
  static const double rate = [] {
    const int64_t count = test_device().is_cpu() ? 1 << 20 : 256 << 20;
    const auto options = at::TensorOptions(at::kByte).device(test_device());
    const at::Tensor from = at::empty({count}, options), to = at::empty({count}, options);
    return 2 * static_cast<double>(count) / seconds_of([&] { to.copy_(from); });
  }();
  return rate;
}

/// "milliseconds share": of the rate of a copy, that reading and writing `bytes` in this time is.
std::string speed(double seconds, double bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(4) << 1e3 * seconds << ' ' << std::setprecision(2)
       << bytes / seconds / copy_rate();
  return text.str();
}
std::string scientific(double value) {
  std::ostringstream text;
  text << std::scientific << std::setprecision(1) << value;
  return text.str();
}

struct Shaped {
  std::string name;
  std::function<Tensors(int64_t rows)> inputs;  ///< differentiable
  std::function<at::Tensor(const Tensors& inputs, bool fused)> run;
};
std::ostream& operator<<(std::ostream& out, const Shaped& shaped) { return out << shaped.name; }

Shaped low_rank(const char* name, int64_t in, int64_t out) {
  return {name,
          [=](int64_t rows) {
            return Tensors{numbers({rows, in}, 1), numbers({rows, out}, 2), numbers({kRank, in}, 3, at::kFloat),
                           numbers({out, kRank}, 4, at::kFloat)};
          },
          [](const Tensors& x, bool fused) { return low_rank_sum(x[0], x[1], x[2], x[3], 0.7, fused); }};
}

std::vector<Shaped> all() {
  const auto row = [](double seed) { return numbers({1, 1, kWidth}, seed); };
  return {{"modulated_norm",
           [=](int64_t rows) {
             return Tensors{numbers({1, rows, kWidth}, 1), row(2), row(3)};
           },
           [](const Tensors& x, bool fused) { return modulated_norm(x[0], x[1], x[2], 1e-6, fused); }},
          {"norm_rope",
           [](int64_t rows) {
             const int64_t text = rows / 3, head = kWidth / kHeads;
             return Tensors{numbers({1, text, kHeads, head}, 1), numbers({1, rows - text, kHeads, head}, 2),
                            numbers({head}, 3), numbers({head}, 4)};
           },
           [](const Tensors& x, bool fused) {
             static at::Tensor table;  // of one size after the other
             const int64_t rows = x[0].size(1) + x[1].size(1);
             if (!table.defined() || table.size(1) != rows) {
               const at::Tensor angles = numbers({1, rows, kWidth / kHeads / 2}, 5, at::kFloat) * 3;
               table = at::stack({at::cos(angles), at::sin(angles)}, -1);
             }
             return norm_rope({x[0], x[1]}, {x[2], x[3]}, table, 1e-6, fused);
           }},
          {"swiglu",
           [](int64_t rows) {
             return Tensors{numbers({1, rows, 2 * kMlp}, 1), numbers({1, rows, kWidth}, 2)};
           },
           [](const Tensors& x, bool fused) { return swiglu(x[0], x[1], fused); }},
          {"gated_residual",
           [=](int64_t rows) {
             return Tensors{numbers({1, rows, kWidth}, 1), row(2), numbers({1, rows, kWidth}, 3)};
           },
           [](const Tensors& x, bool fused) { return gated_residual(x[0], x[1], x[2], fused); }},
          low_rank("low_rank_qkv_mlp", kWidth, 3 * kWidth + 2 * kMlp),
          low_rank("low_rank_out", kWidth + kMlp, kWidth)};
}

std::vector<int64_t> row_counts() {
  return test_device().is_cpu() ? std::vector<int64_t>{6} : std::vector<int64_t>{1536, 4608};
}

class RealShapes : public ::testing::TestWithParam<Shaped> {};
INSTANTIATE_TEST_SUITE_P(Operations, RealShapes, ::testing::ValuesIn(all()),
                         [](const auto& info) { return info.param.name; });

TEST_P(RealShapes, AreNearFp64) {
  for (const int64_t rows : row_counts()) {
    Tensors inputs = GetParam().inputs(rows), wide;
    for (at::Tensor& input : inputs) {
      input.requires_grad_(true);
      wide.push_back(input.detach().to(at::kDouble).requires_grad_(true));
    }
    const at::Tensor y = GetParam().run(inputs, true), exact = GetParam().run(wide, false);
    const at::Tensor direction = numbers(y.sizes(), 9);
    const auto backward = [&] { return torch::autograd::grad({y}, inputs, {direction}, /*retain_graph=*/true); };
    const Tensors grads = backward();
    double apart = error(y.detach(), exact.detach());
    const Tensors expected = torch::autograd::grad({exact}, wide, {direction.to(at::kDouble)});
    for (std::size_t i = 0; i < grads.size(); ++i) apart = std::max(apart, error(grads[i], expected[i]));
    EXPECT_LE(apart, 1.2e-2) << rows << " rows";
    const double forward = seconds_of([&] {
      const at::NoGradGuard none;
      GetParam().run(inputs, true);
    });
    RecordProperty("shape_" + GetParam().name + "_" + std::to_string(rows),
                   scientific(apart) + " " + speed(forward, bytes_of(inputs) + bytes_of({y})) + " " +
                       speed(seconds_of(backward), bytes_of(inputs) + bytes_of({direction}) + bytes_of(grads)));
  }
}

/// Weights in 8 bits expanded, and rows made into 8 bits: the bits of LibTorch's operators.
TEST(RealShapesOfEightBits, AreTheBitsOfPlainOperators) {
  for (const int64_t rows : row_counts()) {
    const at::Tensor x = numbers({rows, kWidth}, 1);
    const eight_bits::Packed packed =
        eight_bits::quantize(x.to(at::kFloat), eight_bits::Granularity::channel, "weight");
    const at::Tensor y = eight_bits::dequantize(packed, at::kBFloat16);
    EXPECT_TRUE(at::equal(y, eight_bits::dequantize_by_operators(packed, at::kBFloat16)));
    const double expanding = seconds_of([&] { eight_bits::dequantize(packed, at::kBFloat16); });
    RecordProperty("shape_expand_codes_" + std::to_string(rows),
                   "equal " + speed(expanding, bytes_of({packed.values, packed.scale, y})));
    const eight_bits::Rows made = eight_bits::quantize_rows(x, eight_bits::Code::e4m3),
                           here = eight_bits::quantize_rows(x.cpu(), eight_bits::Code::e4m3);
    EXPECT_TRUE(at::equal(made.values.cpu().view(at::kByte), here.values.view(at::kByte)));
    EXPECT_TRUE(at::equal(made.scale.cpu(), here.scale));
    const double making = seconds_of([&] { eight_bits::quantize_rows(x, eight_bits::Code::e4m3); });
    RecordProperty("shape_quantize_rows_" + std::to_string(rows),
                   "equal " + speed(making, bytes_of({x, made.values, made.scale})));
  }
}

}  // namespace
}  // namespace trainer::test
