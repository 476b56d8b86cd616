// What the sum over processes costs: average_worker ELEMENTS, once for each process as docs/scaling.md says. Not a
// test.
#include <ATen/ops/ones.h>

#include <distributed/group.hpp>

#include <cstdio>
#include <cstdlib>
#include <ctime>

using namespace trainer::distributed;

int main(int count, char** arguments) {
  const int64_t elements = count > 1 ? std::atoll(arguments[1]) : 154'000'000;  // the LoRA of rank 32 of FLUX.2-dev
  constexpr int64_t kTensors = 300;
  try {
    Group group(find_place(), std::chrono::seconds(60));
    group.together([&] {
      std::vector<at::Tensor> gradients;
      for (int64_t i = 0; i < kTensors; ++i) gradients.push_back(at::ones({elements / kTensors}));
      for (int round = 0; round < 5; ++round) {
        group.barrier();
        const auto begin = std::chrono::steady_clock::now();
        const std::clock_t processor = std::clock();
        group.average(gradients);
        const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
        if (group.writer())
          std::printf("%lld elements, %d processes: %.3f s, of that on the processor %.3f s\n",
                      static_cast<long long>(elements), group.size(), wall.count(),
                      static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC);
      }
    });
  } catch (const trainer::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
