// fp32 products of both libraries against fp64, and that what oneDNN does not take is LibTorch's as before.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>
#include <matmul/matmul.hpp>
#include <support/variable.hpp>
#include <trainer/sdk/ops/products.hpp>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace trainer::matmul {
namespace {

using at::Tensor;

class Matmul : public testing::Test {
 protected:
  void SetUp() override { use(Library::onednn); }
  void TearDown() override { use_libtorchs(); }

  static Tensor numbers(std::vector<int64_t> shape) { return at::randn(shape, generator_); }
  static bool same(const Tensor& a, const Tensor& b) { return at::equal(a, b); }
  static double error(const Tensor& given, const Tensor& exact) {
    return ((given.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
  }
  /// What the product is with LibTorch's choice.
  template <typename Product>
  static Tensor by_mkl(const Product& product) {
    use(Library::mkl);
    Tensor result = product();
    use(Library::onednn);
    return result;
  }

  static inline at::Generator generator_ = at::detail::createCPUGenerator(7);
};

TEST_F(Matmul, TransposedOrNotItIsTheProduct) {
  for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{{64, 192, 96}, {33, 17, 16}, {256, 16, 512}}) {
    const Tensor a = numbers({m, k}), b = numbers({k, n}), at_ = numbers({k, m}).t(), bt = numbers({n, k}).t();
    for (const Tensor& left : {a, at_})
      for (const Tensor& right : {b, bt}) {
        const Tensor exact = at::mm(left.to(at::kDouble), right.to(at::kDouble));
        EXPECT_LT(error(at::mm(left, right), exact), 5e-7);
      }
  }
}

TEST_F(Matmul, AddsAndScales) {
  const Tensor a = numbers({64, 48}), b = numbers({32, 48}).t(), added = numbers({64, 32}), row = numbers({32});
  const auto exact = [&](const Tensor& sum, double beta, double alpha) {
    return beta * sum.to(at::kDouble) + alpha * at::mm(a.to(at::kDouble), b.to(at::kDouble));
  };
  EXPECT_LT(error(at::addmm(added, a, b), exact(added, 1, 1)), 5e-7);
  EXPECT_LT(error(at::addmm(row, a, b, 1, 0.5), exact(row, 1, 0.5)), 5e-7);
  EXPECT_LT(error(at::addmm(added, a, b, -2, 3), exact(added, -2, 3)), 5e-7);
  EXPECT_LT(error(at::addmm(added, a, b, 2, 0), exact(added, 2, 0)), 5e-7);
  const Tensor not_read = at::full({32}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_LT(error(at::addmm(not_read, a, b, 0, 1), exact(row, 0, 1)), 5e-7) << "beta 0: what is added is not read";
  EXPECT_FALSE(same(added, at::addmm(added, a, b))) << "its input is left alone";
}

TEST_F(Matmul, Batches) {
  const Tensor a = numbers({3, 64, 32}), b = numbers({3, 48, 32}).transpose(1, 2);
  EXPECT_LT(error(at::bmm(a, b), at::bmm(a.to(at::kDouble), b.to(at::kDouble))), 5e-7);
}

TEST_F(Matmul, TheSameBitsEveryTime) {
  const Tensor a = numbers({128, 320}), b = numbers({192, 320}).t();
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const Tensor first = at::mm(a, b);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(same(at::mm(a, b), first));
  }
  at::set_num_threads(1);
}

TEST_F(Matmul, WhatItDoesNotTakeIsAsBefore) {
  const Tensor wide = numbers({64, 200}), b = numbers({100, 64}), few = numbers({8, 100});
  const Tensor view = wide.narrow(1, 50, 100);  // gaps between its rows
  const Tensor half = numbers({64, 100}).to(at::kBFloat16), fine = numbers({64, 100}).to(at::kDouble);
  for (const Tensor& left : {view, few, half, fine}) {
    const auto product = [&] { return at::mm(left, b.to(left.scalar_type())); };
    EXPECT_TRUE(same(product(), by_mkl(product)));
  }
  EXPECT_EQ(at::mm(numbers({0, 100}), b).size(0), 0);
  EXPECT_TRUE(same(at::mm(numbers({64, 0}), numbers({0, 32})), at::zeros({64, 32})));
  EXPECT_THROW(at::mm(numbers({64, 99}), b), c10::Error);
  EXPECT_THROW(at::addmm(numbers({7}), numbers({64, 100}), b), c10::Error);
}

TEST_F(Matmul, OfBf16IsRoundedOnce) {
  const Tensor a = numbers({90, 700}).to(at::kBFloat16), b = numbers({64, 700}).to(at::kBFloat16).t();
  const Tensor added = numbers({90, 64}).to(at::kBFloat16), row = numbers({64}).to(at::kBFloat16);
  const auto exact = [](const Tensor& x, const Tensor& y) { return at::matmul(x.to(at::kDouble), y.to(at::kDouble)); };
  for (const Library library : {Library::mkl, Library::onednn}) {
    use(library);
    const Tensor whole = at::mm(a, b);
    EXPECT_LT(error(whole, exact(a, b)), 2e-3);
    EXPECT_LT(error(at::mm(a.t(), whole), exact(a.t(), whole)), 2e-3);
    EXPECT_LT(error(at::addmm(added, a, b), exact(a, b) + added), 2e-3);
    EXPECT_LT(error(at::addmm(row, a, b, 1, 0.5), 0.5 * exact(a, b) + row), 2e-3);
    EXPECT_LT(error(at::addmm(row, a, b, 2, 1), exact(a, b) + 2 * row), 2e-3);
    EXPECT_LT(error(at::addmm(row.select(0, 3), a, b), exact(a, b) + row.select(0, 3)), 2e-3) << "one number for all";
    const Tensor batches = a.unflatten(0, {3, 30}), weights = b.unsqueeze(0).expand({3, 700, 64});
    EXPECT_LT(error(at::bmm(batches, weights), exact(batches, weights)), 2e-3);
    EXPECT_LT(error(at::mm(a.narrow(1, 100, 50), b.narrow(0, 0, 50)), exact(a.narrow(1, 100, 50), b.narrow(0, 0, 50))),
              2e-3);
    EXPECT_EQ(at::mm(a.narrow(0, 0, 0), b).size(0), 0);
    EXPECT_THROW(at::mm(a, a), c10::Error);
  }
}

/// stride, padding, kernel, channels of the pictures and of the result.
const std::vector<std::array<int64_t, 5>> kConvolutions{
    {1, 1, 3, 3, 20}, {2, 0, 3, 64, 40}, {1, 0, 1, 300, 33}, {1, 2, 5, 7, 5}};

TEST_F(Matmul, ConvolvesBf16) {
  for (const auto& [stride, padding, kernel, in, out] : kConvolutions) {
    const Tensor x = numbers({3, in, 19, 14}).to(at::kBFloat16), bias = numbers({out}).to(at::kBFloat16);
    const Tensor weight = numbers({out, in, kernel, kernel}).to(at::kBFloat16);
    const auto of = [&](const Tensor& pictures) { return at::conv2d(pictures, weight, bias, stride, padding); };
    const Tensor exact = at::conv2d(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble), stride, padding);
    const Tensor whole = of(x);
    EXPECT_LT(error(whole, exact), 2e-3);
    EXPECT_LT(error(of(x.contiguous(at::MemoryFormat::ChannelsLast)), exact), 2e-3);
    EXPECT_LT(error(at::conv2d(x, weight, {}, stride, padding), exact - bias.to(at::kDouble).view({1, -1, 1, 1})),
              2e-3);
    const Tensor trained = x.detach().requires_grad_(true), kernels = weight.detach().requires_grad_(true);
    const Tensor grad = numbers(whole.sizes().vec());
    const Tensor wide = x.to(at::kDouble).requires_grad_(true),
                 wide_kernels = weight.to(at::kDouble).requires_grad_(true);
    const auto found = torch::autograd::grad({at::conv2d(trained, kernels, bias, stride, padding)}, {trained, kernels},
                                             {grad.to(at::kBFloat16)});
    const auto wanted = torch::autograd::grad({at::conv2d(wide, wide_kernels, {}, stride, padding)},
                                              {wide, wide_kernels}, {grad.to(at::kBFloat16).to(at::kDouble)});
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_LT(error(found[i], wanted[i]), 4e-3) << i;
  }
  const Tensor x = numbers({1, 4, 6, 6}).to(at::kBFloat16), grouped = numbers({4, 1, 3, 3}).to(at::kBFloat16);
  EXPECT_LT(error(at::conv2d(x, grouped, {}, 1, 1, 2, 4),
                  at::conv2d(x.to(at::kDouble), grouped.to(at::kDouble), {}, 1, 1, 2, 4)),
            5e-3)
      << "what it does not take is LibTorch's";
  EXPECT_THROW(at::conv2d(x, numbers({4, 4, 9, 9}).to(at::kBFloat16)), c10::Error);
}

/// Products and convolutions of bf16 by themselves, with company and with more threads; ends the process, with 0 where
/// the bits are the same.
[[noreturn]] void compare_bits_of_bf16_and_exit(const std::function<Tensor(std::vector<int64_t>)>& numbers) {
  bool good = !has_bf16_products();
  const auto expect_equal = [&](const Tensor& got, const Tensor& wanted, const char* what) {
    if (at::equal(got, wanted)) return;
    std::cerr << what << " changed bits\n";
    good = false;
  };
  const Tensor a = numbers({90, 700}).to(at::kBFloat16), b = numbers({64, 700}).to(at::kBFloat16).t();
  for (const Library library : {Library::mkl, Library::onednn}) {
    use(library);
    at::set_num_threads(1);
    const Tensor whole = at::mm(a, b);
    expect_equal(at::mm(a.narrow(0, 7, 1), b), whole.narrow(0, 7, 1), "a row alone");
    at::set_num_threads(3);
    expect_equal(at::mm(a, b), whole, "threads");
    expect_equal(at::bmm(a.unflatten(0, {3, 30}), b.unsqueeze(0).expand({3, 700, 64})).flatten(0, 1), whole, "a batch");
  }
  for (const auto& [stride, padding, kernel, in, out] : kConvolutions) {
    const Tensor x = numbers({3, in, 19, 14}).to(at::kBFloat16), bias = numbers({out}).to(at::kBFloat16);
    const Tensor weight = numbers({out, in, kernel, kernel}).to(at::kBFloat16);
    const auto of = [&](const Tensor& pictures) { return at::conv2d(pictures, weight, bias, stride, padding); };
    at::set_num_threads(1);
    const Tensor whole = of(x);
    good = good && whole.is_contiguous(at::MemoryFormat::ChannelsLast);
    expect_equal(of(x.narrow(0, 1, 1)), whole.narrow(0, 1, 1), "a picture alone");
    at::set_num_threads(3);
    expect_equal(of(x), whole, "threads of a convolution");
  }
  std::_Exit(good ? 0 : 1);
}

// On a processor with instructions for bf16 these products are oneDNN's: held below, it leaves them to this program.
TEST_F(Matmul, OfBf16HasNoCompanyWithoutInstructionsForIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own: oneDNN reads the variable once
  const test::Variable held("ONEDNN_MAX_CPU_ISA", "AVX2");
  EXPECT_EXIT(compare_bits_of_bf16_and_exit(&Matmul::numbers), testing::ExitedWithCode(0), "");
}

TEST_F(Matmul, GradientsComeFromAutograd) {
  const Tensor a = numbers({64, 100}).requires_grad_(true), b = numbers({100, 64}).requires_grad_(true);
  const Tensor grad = numbers({64, 64});
  const std::vector<Tensor> found = torch::autograd::grad({at::mm(a, b)}, {a, b}, {grad});
  EXPECT_LT(error(found[0], at::mm(grad.to(at::kDouble), b.detach().to(at::kDouble).t())), 5e-7);
  EXPECT_LT(error(found[1], at::mm(a.detach().to(at::kDouble).t(), grad.to(at::kDouble))), 5e-7);
}

/// Kilobytes of a line of /proc/self/status.
int64_t status(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1));
  return 0;
}

TEST_F(Matmul, NeedsNoMemoryThatNobodyCounts) {
  const Tensor x = numbers({1024, 1024}), weight = numbers({6144, 1024}), grad = numbers({1024, 6144});
  std::ofstream("/proc/self/clear_refs") << 5 << std::flush;  // the highest is measured from here
  const int64_t before = status("VmRSS");
  const Tensor y = at::mm(x, weight.t()), dx = at::mm(grad, weight), dw = at::mm(grad.t(), x);
  const auto results = static_cast<int64_t>((y.nbytes() + dx.nbytes() + dw.nbytes()) >> 10);
  const int64_t more = status("VmHWM") - before - results, weight_size = static_cast<int64_t>(weight.nbytes() >> 10);
  RecordProperty("kilobytes", static_cast<int>(more));
  EXPECT_LT(more, weight_size / 2) << "no copy of a matrix";
}

TEST_F(Matmul, IsChosenAndGivenBack) {
  const Tensor a = numbers({256, 512}), b = numbers({512, 256});
  EXPECT_EQ(used(), Library::onednn);
  const Tensor ours = at::mm(a, b);
  use(Library::mkl);
  EXPECT_EQ(used(), Library::mkl);
  const Tensor theirs = at::mm(a, b);
  if (suited() == Library::onednn) {
    EXPECT_FALSE(same(ours, theirs)) << "the two round differently on this processor";
  }
  EXPECT_LT(error(ours, theirs.to(at::kDouble)), 1e-6);
  EXPECT_EQ(suited(), suited());
  EXPECT_EQ(name_of(Library::onednn) + name_of(Library::mkl), "onednnmkl");
}

}  // namespace
}  // namespace trainer::matmul
