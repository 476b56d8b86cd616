// Attention on the CPU by our kernel and by LibTorch's: attention_bench [ROUNDS]. The two alternate on one thread;
// processor time, the median of the rounds. Not a test; its numbers stand in docs/benchmarks.md.
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <matmul/matmul.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

namespace {

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> list) {
  std::sort(list.begin(), list.end());
  return list[list.size() / 2];
}

struct Shape {
  int64_t batch, heads, tokens, width;
};

void measure(at::ScalarType dtype, const Shape& shape, int rounds) {
  const auto make = [&] {  // as models make them: heads are cut from the last dimension
    return at::randn({shape.batch, shape.tokens, shape.heads, shape.width}, dtype).transpose(1, 2);
  };
  const std::vector<at::Tensor> inputs{make().requires_grad_(true), make().requires_grad_(true),
                                       make().requires_grad_(true)};
  const at::Tensor gradient = make();
  std::array<std::vector<double>, 2> forward, backward;
  for (int round = 0; round < 2 * (rounds + 1); ++round) {
    const std::size_t theirs = round % 2;
    theirs == 1 ? trainer::matmul::use_libtorchs() : trainer::matmul::use(trainer::matmul::Library::onednn);
    const double begin = processor_seconds();
    const at::Tensor y = at::scaled_dot_product_attention(inputs[0], inputs[1], inputs[2]);
    const double middle = processor_seconds();
    torch::autograd::grad({y}, inputs, {gradient});
    if (round < 2) continue;  // the first of each
    forward[theirs].push_back(middle - begin);
    backward[theirs].push_back(processor_seconds() - middle);
  }
  const double ms[] = {1e3 * median(forward[0]), 1e3 * median(forward[1]), 1e3 * median(backward[0]),
                       1e3 * median(backward[1])};
  std::printf("| %s | %lld x %lld | %lld x %lld | %.2f / %.2f = %.2f | %.2f / %.2f = %.2f |\n",
              dtype == at::kFloat ? "fp32" : "bf16", static_cast<long long>(shape.batch),
              static_cast<long long>(shape.tokens), static_cast<long long>(shape.heads),
              static_cast<long long>(shape.width), ms[0], ms[1], ms[0] / ms[1], ms[2], ms[3], ms[2] / ms[3]);
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 15;
  if (rounds < 1) return 2;
  at::set_num_threads(1);
  std::printf(
      "| dtype | samples x tokens | heads x width | forward, ms: ours / LibTorch | backward, ms: ours / LibTorch |\n");
  std::printf("|---|---|---|---|---|\n");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const Shape& shape : {Shape{1, 6, 4, 128},
                               {8, 4, 48, 48},
                               {1, 6, 64, 128},
                               {1, 6, 128, 128},
                               {1, 6, 256, 128},
                               {1, 6, 512, 128},
                               {1, 6, 1024, 128},
                               {1, 6, 4096, 128},
                               {1, 1, 1024, 512}})
      measure(dtype, shape, rounds);
  return 0;
}
