/// @file fp32 matrix products by MKL and by oneDNN, as models need them; its table stands in ADR 8.
///   OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 build/release/tests/bench/matmul_bench
/// Prints GFLOP/s of MKL / oneDNN for y = x W^T, dx = g W and dW = g^T x, the best of several calls in processor time.
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <matmul/matmul.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>

#include "worker.hpp"

namespace {

using namespace trainer;

double rate(matmul::Library library, const at::Tensor& a, const at::Tensor& b) {
  constexpr int kCalls = 8;
  matmul::use(library);
  at::mm(a, b);
  double best = 1e30;
  for (int i = 0; i < kCalls; ++i) best = std::min(best, bench::timed([&] { at::mm(a, b); }).cpu);
  return 2e-9 * static_cast<double>(a.size(0) * a.size(1) * b.size(1)) / best;
}

void print(const char* name, const at::Tensor& a, const at::Tensor& b) {
  std::printf("  %s %6.1f / %6.1f", name, rate(matmul::Library::mkl, a, b), rate(matmul::Library::onednn, a, b));
}

}  // namespace

int main() {
  at::set_num_threads(1);
  std::printf("this processor is best served by %s\n", matmul::name_of(matmul::suited()).c_str());
  for (const auto& [rows, in, out] : std::array<std::array<int64_t, 3>, 9>{{{1024, 1024, 1024},
                                                                            {1024, 1024, 9216},
                                                                            {1024, 4096, 1024},
                                                                            {1536, 768, 2304},
                                                                            {1024, 1024, 16},
                                                                            {1024, 16, 1024},
                                                                            {64, 192, 192},
                                                                            {32, 192, 1152},
                                                                            {16, 1024, 1024}}}) {
    const at::Tensor x = at::randn({rows, in}), weight = at::randn({out, in}), grad = at::randn({rows, out});
    std::printf("%5lld x %5lld x %5lld", static_cast<long long>(rows), static_cast<long long>(in),
                static_cast<long long>(out));
    print("y", x, weight.t());
    print("dx", grad, weight);
    print("dW", grad.t(), x);
    std::printf("\n");
  }
}
