// Fused operations against LibTorch's operators one by one, at the shapes of a model of 100 million parameters (1,024
// tokens, width 768): fused_bench [ROUNDS [NAME]], NAME a part of an operation's
// name. The two alternate on one thread; processor time, the median of the rounds. Not a test; its numbers stand in
// docs/benchmarks.md.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>
#include <base/heap.hpp>
#include <trainer/sdk/ops/fused.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <vector>

namespace {

using Tensors = std::vector<at::Tensor>;
using Run = std::function<at::Tensor(bool fused)>;

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> list) {
  std::sort(list.begin(), list.end());
  return list[list.size() / 2];
}

const char* wanted = "";

/// One line: milliseconds of forward and of backward, fused and plain.
void measure(const char* name, int rounds, const Tensors& inputs, const Run& run) {
  if (std::strstr(name, wanted) == nullptr) return;
  std::vector<double> forward[2], backward[2];
  for (int round = 0; round < 2 * (rounds + 1); ++round) {
    const bool fused = round % 2 == 0;
    const double begin = processor_seconds();
    const at::Tensor y = run(fused);
    const double middle = processor_seconds();
    const at::Tensor gradient = at::randn(y.sizes(), y.options());
    const double between = processor_seconds();
    torch::autograd::grad({y}, inputs, {gradient});
    if (round < 2) continue;  // the first of each
    forward[fused].push_back(middle - begin);
    backward[fused].push_back(processor_seconds() - between);
  }
  const double ms[] = {1e3 * median(forward[1]), 1e3 * median(forward[0]), 1e3 * median(backward[1]),
                       1e3 * median(backward[0])};
  std::printf("| %s | %.2f / %.2f = %.2f | %.2f / %.2f = %.2f |\n", name, ms[0], ms[1], ms[0] / ms[1], ms[2], ms[3],
              ms[2] / ms[3]);
  std::fflush(stdout);
}

void measure_all(at::ScalarType dtype, int rounds) {
  constexpr int64_t kTokens = 1024, kWidth = 768, kHeads = 6, kMlp = 2304, kRank = 16, kIn = 3 * kWidth + 2 * kMlp;
  const auto make = [&](at::IntArrayRef shape) { return at::randn(shape, dtype); };
  const auto trained = [](at::Tensor tensor) { return tensor.requires_grad_(true); };
  std::printf("\n%s\n\n| operation | forward, ms: fused / plain | backward, ms |\n|---|---|---|\n",
              c10::toString(dtype));
  const at::Tensor x = trained(make({1, kTokens, kWidth})), shift = make({1, 1, kWidth}), scale = make({1, 1, kWidth});
  measure("modulated_norm", rounds, {x},
          [&](bool fused) { return trainer::modulated_norm(x, shift, scale, 1e-6, fused); });
  const at::Tensor trained_shift = trained(make({1, 1, kWidth})), trained_scale = trained(make({1, 1, kWidth}));
  measure("modulated_norm, trained rows", rounds, {x, trained_shift, trained_scale},
          [&](bool fused) { return trainer::modulated_norm(x, trained_shift, trained_scale, 1e-6, fused); });
  const at::Tensor projected = make({1, kTokens, kIn}), weight = make({kWidth / kHeads});
  const at::Tensor heads = trained(projected.narrow(-1, 0, kWidth).unflatten(-1, {kHeads, -1}));
  const at::Tensor table = at::randn({1, kTokens, kWidth / kHeads / 2, 2});
  measure("norm_rope", rounds, {heads},
          [&](bool fused) { return trainer::norm_rope({heads}, {weight}, table, 1e-6, fused); });
  const at::Tensor trained_weight = trained(make({kWidth / kHeads}));
  measure("norm_rope, trained weight", rounds, {heads, trained_weight},
          [&](bool fused) { return trainer::norm_rope({heads}, {trained_weight}, table, 1e-6, fused); });
  const at::Tensor gates = trained(projected.narrow(-1, 3 * kWidth, 2 * kMlp).detach());
  const at::Tensor before = trained(make({1, kTokens, kWidth}));
  measure("swiglu, joined", rounds, {gates, before}, [&](bool fused) { return trainer::swiglu(gates, before, fused); });
  const at::Tensor added = trained(make({1, kTokens, kWidth})), gate = trained(make({1, 1, kWidth}));
  measure("gated_residual", rounds, {x, added},
          [&](bool fused) { return trainer::gated_residual(x, scale, added, fused); });
  measure("gated_residual, trained gate", rounds, {x, gate, added},
          [&](bool fused) { return trainer::gated_residual(x, gate, added, fused); });
  const at::Tensor rows = trained(make({kTokens, kWidth})), y = trained(make({kTokens, kIn}));
  const at::Tensor a = trained(at::randn({kRank, kWidth})), b = trained(at::randn({kIn, kRank}));
  measure("low_rank_sum, 768 to 6912", rounds, {rows, y, a, b},
          [&](bool fused) { return trainer::low_rank_sum(rows, y, a, b, 1.0, fused); });
  const auto layer = std::make_shared<trainer::DenseWeight>(make({kIn, kWidth}));
  measure("low_rank_linear; two fused nodes", rounds, {rows, a, b}, [&](bool one) {
    return one ? trainer::low_rank_linear(rows, layer, a, b, 1.0)
               : trainer::low_rank_sum(rows, trainer::frozen_linear(rows, layer), a, b, 1.0);
  });
}

}  // namespace

int main(int count, char** arguments) {
  trainer::keep_freed_memory();  // as the program does
  at::set_num_threads(1);
  const int rounds = count > 1 ? std::max(1, std::atoi(arguments[1])) : 25;
  if (count > 2) wanted = arguments[2];
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) measure_all(dtype, rounds);
}
