/// @file Recomputed blocks on devices whose backward runs on autograd threads of their own, as on CUDA: errors come out
/// of those threads, a step that ran out of memory can be run again, and copies between devices may be in a block.
/// Names follow PyTorch's tests (docs/pytorch-tests.md).
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <chain.hpp>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

#include "device_fixture.hpp"

namespace trainer::test {
namespace {

using selective::SaveList;
using torch::autograd::grad;

/// Before the first backward: autograd then makes a thread for each device.
class Devices final : public testing::Environment {
 public:
  void SetUp() override { sim::init_once(); }
};
[[maybe_unused]] const testing::Environment* const devices = testing::AddGlobalTestEnvironment(new Devices);

Chain chain_on(int device, int64_t blocks = 3) { return Chain({.blocks = blocks, .device = sim::device(device)}); }

TEST(DeviceThread, RecomputesRunOnItWithTheBitsOfTheHost) {
  Chain host({.blocks = 3}), chain = chain_on(0);
  std::vector<at::Tensor> expected = host.step({});
  const std::thread::id own = std::this_thread::get_id();
  for (const bool elide : {false, true}) {
    RecomputeState sites;
    SaveList save({"mm"});
    BlockRun how = keeping(save, &sites);
    how.options.elide = elide;
    for (int step = 0; step < 2; ++step) {
      std::vector<std::thread::id> ran;
      chain.enter = [&] { ran.push_back(std::this_thread::get_id()); };
      std::vector<at::Tensor> got = chain.step(how);
      chain.enter = [] {};
      EXPECT_EQ(ran.front(), own) << "the forward";
      EXPECT_NE(ran.back(), own) << "the last recompute";
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i].cpu(), expected[i])) << i;
    }
  }
}

/// test_custom_function_propagates_errors_from_device_thread: with its type; the next step is as if nothing had been.
TEST(CustomFunction, PropagatesErrorsFromDeviceThread) {
  Chain chain = chain_on(1);
  const std::vector<at::Tensor> plain = chain.step({});
  for (const bool elide : {false, true}) {
    RecomputeState sites;
    BlockRun how = recomputed(&sites);
    how.options.elide = elide;
    chain.step(how);
    const std::thread::id own = std::this_thread::get_id();
    chain.enter = [own] {
      if (std::this_thread::get_id() != own) throw Error(ExitCode::out_of_memory, "no memory", "OOM");
    };
    try {
      chain.step(how);
      ADD_FAILURE() << "no exception";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::out_of_memory);
      EXPECT_STREQ(error.what(), "no memory");
    }
    chain.enter = [own] {
      if (std::this_thread::get_id() != own) throw std::out_of_range("node");
    };
    EXPECT_THROW(chain.step(how), std::out_of_range);
    chain.enter = [] {};
    EXPECT_TRUE(at::GradMode::is_enabled());
    EXPECT_TRUE(same_bits(chain.step(how), plain)) << elide;
  }
}

/// test_callback_propagates_errors_from_device_thread.
TEST(Callback, PropagatesErrorsFromDeviceThread) {
  Chain chain = chain_on(0);
  const std::vector<at::Tensor> plain = chain.step({});
  RecomputeState sites;
  chain.step(recomputed(&sites));
  const std::thread::id own = std::this_thread::get_id();
  int queued = 0;
  chain.enter = [&] {
    if (std::this_thread::get_id() == own || queued++ > 0) return;
    torch::autograd::Engine::get_default_engine().queue_callback([] { throw std::range_error("callback"); });
  };
  EXPECT_THROW(chain.step(recomputed(&sites)), std::range_error);
  EXPECT_GT(queued, 0);
  chain.enter = [] {};
  EXPECT_TRUE(same_bits(chain.step(recomputed(&sites)), plain));
}

/// test_backward_single_threaded: the training loop turns multithreading off; all nodes then run where it is called.
TEST(BackwardSingleThreaded, DeviceNodesRunOnTheCallingThread) {
  auto& state = c10::AutogradState::get_tls_state();
  const bool before = state.get_multithreading_enabled();
  Chain chain = chain_on(0);
  const std::vector<at::Tensor> plain = chain.step({});
  state.set_multithreading_enabled(false);
  const std::thread::id own = std::this_thread::get_id();
  RecomputeState sites;
  int elsewhere = 0;
  chain.enter = [&] { elsewhere += std::this_thread::get_id() == own ? 0 : 1; };
  EXPECT_TRUE(same_bits(chain.step(recomputed(&sites)), plain));
  state.set_multithreading_enabled(before);
  EXPECT_EQ(elsewhere, 0);
}

/// test_backward_tls_stash: what a thread sets for itself is there in its backward, and not in that of another.
TEST(BackwardTlsStash, StepsOfTwoThreadsOnTwoDevicesDoNotMeet) {
  std::vector<int> equal(2, 0);
  std::vector<std::thread> threads;
  for (int device = 0; device < 2; ++device)
    threads.emplace_back([&equal, device] {
      Chain chain = chain_on(device);
      const std::vector<at::Tensor> plain = chain.step({});
      RecomputeState sites;
      SaveList save({"attention"});
      BlockRun how = keeping(save, &sites);
      how.options.elide = device == 1;
      for (int step = 0; step < 4; ++step)
        equal[static_cast<std::size_t>(device)] += same_bits(chain.step(how), plain) ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, (std::vector<int>{4, 4}));
}

/// test_function_with_non_tensor_output: here attention also returns its lengths.
TEST(FunctionWithNonTensorOutput, AttentionIsKeptWithItsNumbers) {
  Chain chain = chain_on(0);
  const std::vector<at::Tensor> plain = chain.step({});
  SaveList save({"attention"});
  RecomputeState sites;
  for (int step = 0; step < 2; ++step) EXPECT_TRUE(same_bits(chain.step(keeping(save, &sites)), plain));
  const RecomputeReport& report = sites.reports.at("toy");
  EXPECT_EQ(report.kept, std::vector<std::string>{"_scaled_dot_product_fused_attention_overrideable#0"});
  EXPECT_EQ(report.recomputed_calls, report.forward_calls - 1);
}

/// test_checkpoint_rng_cuda: the generator of a device has state as well.
TEST(CheckpointRng, CudaLikeDropoutIsRefused) {
  const at::Tensor x = data(1, {4, 6}).to(sim::device(0)).requires_grad_();
  LambdaBlock block("b", [](const Flow& flow) {
    return std::vector<at::Tensor>{at::dropout(flow.carried[0] * 2, 0.5, /*train=*/true)};
  });
  RecomputeState sites;
  EXPECT_NE(error_of([&] {
              run_chain({&block}, {{x * 1}, {}, {}}, recomputed(&sites));
            }).find("computed other values for output 0"),
            std::string::npos);
}

/// A block whose inside is on another device: copied there and back, in forward, recompute and backward alike.
TEST(CopyBetweenDevices, InsideABlockIsEqual) {
  const at::Tensor x = data(1, {4, 8}).to(sim::device(0)).requires_grad_();
  const ParameterPtr here = std::make_shared<Parameter>("here", data(2, {8, 8}).to(sim::device(0)).requires_grad_());
  const ParameterPtr there = std::make_shared<Parameter>("there", data(3, {8, 8}).to(sim::device(1)).requires_grad_());
  LambdaBlock block("b", [&](const Flow& flow) {
    const at::Tensor y = at::silu(at::mm(flow.carried[0], here->get())).to(sim::device(1));
    return std::vector<at::Tensor>{flow.carried[0] + at::silu(at::mm(y, there->get())).to(sim::device(0))};
  });
  block.add(here);
  block.add(there);
  const auto gradients = [&](const BlockRun& how) {
    const at::Tensor y = run_chain({&block, &block}, {{x * 1}, {}, {}}, how).carried[0];
    return grad({y.pow(2).sum()}, {x, here->value(), there->value()});
  };
  const std::vector<at::Tensor> plain = gradients({});
  RecomputeState sites;
  SaveList save({"mm"});
  for (int step = 0; step < 2; ++step) {
    EXPECT_TRUE(same_bits(gradients(recomputed(&sites)), plain));
    EXPECT_TRUE(same_bits(gradients(keeping(save, &sites)), plain));
    EXPECT_TRUE(same_bits(gradients(eliding(sites)), plain));
  }
}

/// What the device held and wanted when an allocation was refused.
int64_t wanted_bytes(const c10::OutOfMemoryError& error) {
  long tried = 0, capacity = 0, free = 0;
  int device = 0;
  const std::string text = error.what_without_backtrace();
  const char* const begin = text.c_str() + text.find("Tried");
  EXPECT_EQ(
      std::sscanf(begin, "Tried to allocate %ld bytes. sim:%d has a total capacity of %ld bytes of which %ld bytes is",
                  &tried, &device, &capacity, &free),
      4)
      << text;
  return capacity - free + tried;
}

/// The device's thread may hold on to its part of a graph that died for a moment longer than the caller.
int64_t settled_bytes(int device, int64_t expected) {
  for (int i = 0; i < 500 && sim::stats(device).current != expected; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return sim::stats(device).current;
}

/// Out of memory at one operation after the other: the limit lets each through that failed before, so that every
/// allocation which raises the peak fails once, in forward, trials, recompute and backward. Each time the step runs
/// again with equal results, and nothing stays on the device.
TEST(OutOfMemory, AtEachOperationThatRaisesThePeak) {
  for (const bool first_step : {true, false})
    for (const char* how : {"plain", "full", "selective", "elided"}) {
      Chain chain = chain_on(2, 2);
      const std::vector<at::Tensor> plain = chain.step({});
      const int64_t base = sim::stats(2).current;
      SaveList save({"attention", "mm"});
      int failures = 0;
      for (int64_t limit = base;; ++failures) {
        RecomputeState sites;
        BlockRun run = std::string(how) == "selective" ? keeping(save, &sites) : recomputed(&sites);
        run.options.recompute = std::string(how) != "plain";
        run.options.elide = std::string(how) == "elided";
        if (!first_step) chain.step(run);
        sim::set_capacity(2, limit);
        bool failed = false;
        try {
          EXPECT_TRUE(same_bits(chain.step(run), plain));
        } catch (const c10::OutOfMemoryError& error) {
          failed = true;
          const int64_t wanted = wanted_bytes(error);
          EXPECT_GT(wanted, limit);
          limit = wanted;
        }
        sim::set_capacity(2, 0);
        chain.take_grads();
        EXPECT_EQ(settled_bytes(2, base), base) << how << ", failure " << failures;
        if (!failed) break;
        EXPECT_TRUE(same_bits(chain.step(run), plain)) << how << ", failure " << failures;
      }
      std::printf("%s, %s step: out of memory at %d operations\n", how, first_step ? "first" : "later", failures);
      EXPECT_GE(failures, 8) << how;
    }
}

}  // namespace
}  // namespace trainer::test
