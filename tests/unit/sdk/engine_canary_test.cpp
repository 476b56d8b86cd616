/// @file What the recompute engine needs of LibTorch's autograd engine, as canaries for an upgrade: nested backward,
/// callbacks, accumulation, errors and threads. Names follow PyTorch's test_autograd.py.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "toy.hpp"

namespace trainer::test {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Engine;
using torch::autograd::grad;
using torch::autograd::variable_list;

/// x -> x, whose backward calls `in_backward` first.
struct Calls : torch::CustomClassHolder {
  std::function<void()> in_backward;
};
struct Hooked : torch::autograd::Function<Hooked> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const c10::intrusive_ptr<Calls>& calls) {
    ctx->saved_data["calls"] = c10::IValue::make_capsule(calls);
    return x.clone();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    c10::static_intrusive_pointer_cast<Calls>(ctx->saved_data["calls"].toCapsule())->in_backward();
    return {grads[0], at::Tensor()};
  }
};
at::Tensor hooked(const at::Tensor& x, std::function<void()> in_backward) {
  auto calls = c10::make_intrusive<Calls>();
  calls->in_backward = std::move(in_backward);
  return Hooked::apply(x, calls);
}
at::Tensor leaf(uint64_t seed = 1) { return data(seed, {2, 2}).requires_grad_(); }

/// test_deep_reentrant: every backward starts one more, 200 deep; above 60 the engine goes on in another thread.
TEST(DeepReentrant, TwoHundredDeep) {
  std::vector<int> order;
  std::function<void(int)> descend = [&](int depth) {
    order.push_back(depth);
    if (depth == 0) return;
    const at::AutoGradMode on(true);
    hooked(leaf(), [&, depth] { descend(depth - 1); }).sum().backward();
  };
  const at::Tensor x = leaf();
  hooked(x, [&] { descend(200); }).sum().backward();
  EXPECT_EQ(order.size(), 201U);
  EXPECT_TRUE(std::is_sorted(order.rbegin(), order.rend()));
  EXPECT_TRUE(same_bits(x.grad(), x.detach() * 0 + 1));
}

/// test_reentrant_priority: a nested backward is through before the outer one goes on.
TEST(Reentrant, PriorityOfTheNestedOne) {
  std::string order;
  const at::Tensor x = leaf();
  const at::Tensor outer = hooked(x, [&] { order += 'o'; });
  const at::Tensor nesting = hooked(outer, [&] {
    const at::AutoGradMode on(true);
    at::Tensor y = leaf();
    for (int i = 0; i < 5; ++i) y = hooked(y, [&] { order += 'n'; });
    y.sum().backward();
  });
  nesting.sum().backward();
  EXPECT_EQ(order, "nnnnno");
}

/// test_reentrant_with_callbacks_both_depths: the callbacks of a backward run at its own end.
TEST(Reentrant, WithCallbacksBothDepths) {
  std::string order;
  hooked(leaf(),
         [&] {
           Engine::get_default_engine().queue_callback([&] { order += 'O'; });
           const at::AutoGradMode on(true);
           hooked(leaf(), [&] { Engine::get_default_engine().queue_callback([&] { order += 'I'; }); }).sum().backward();
           order += 'b';
         })
      .sum()
      .backward();
  EXPECT_EQ(order, "IbO");
}

/// test_callback_adds_callback.
TEST(Callback, AddsCallback) {
  int called = 0;
  hooked(leaf(),
         [&] {
           Engine::get_default_engine().queue_callback([&] {
             ++called;
             Engine::get_default_engine().queue_callback([&] { ++called; });
           });
         })
      .sum()
      .backward();
  EXPECT_EQ(called, 2);
}

/// test_callback_propagates_errors_from_device_thread, test_custom_function_propagates_errors_from_device_thread: with
/// the type of the exception, and the engine goes on.
TEST(Callback, ErrorsComeOut) {
  const at::Tensor x = leaf();
  EXPECT_THROW(hooked(x, [] { throw std::out_of_range("node"); }).sum().backward(), std::out_of_range);
  EXPECT_THROW(
      hooked(x, [] { Engine::get_default_engine().queue_callback([] { throw std::range_error("callback"); }); })
          .sum()
          .backward(),
      std::range_error);
  x.mutable_grad() = at::Tensor();
  hooked(x, [] {}).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

/// test_input_buffer_accum: gradients of one tensor from several consumers are added into new memory, never into
/// theirs.
TEST(InputBufferAccum, DoesNotTouchItsParts) {
  const at::Tensor x = leaf();
  const at::Tensor middle = x * 1, part = data(7, {2, 2}), copy = part.clone();
  const at::Tensor a = middle.view_as(middle), b = middle.view_as(middle), c = middle.view_as(middle);
  torch::autograd::backward({a, b, c}, {part, part, part});
  EXPECT_TRUE(same_bits(part, copy));
  EXPECT_TRUE(same_bits(x.grad(), part + part + part));
}

/// test_set_multithreading_enabled_as_context_manager_and_function, test_backward_single_threaded: with it off and on,
/// backward of CPU tensors runs on the thread that asks, recomputes included, with equal bits.
TEST(SetMultithreadingEnabled, AsContextManagerAndFunction) {
  auto& state = c10::AutogradState::get_tls_state();
  const bool before = state.get_multithreading_enabled();
  Toy toy;
  const Outcome plain = toy.step({});
  for (const bool enabled : {false, true}) {
    state.set_multithreading_enabled(enabled);
    std::thread::id seen;
    toy.tick = [&] { seen = std::this_thread::get_id(); };
    RecomputeState sites;
    EXPECT_TRUE(toy.step(recomputed(&sites)) == plain);
    EXPECT_EQ(seen, std::this_thread::get_id());
    toy.tick = [] {};
  }
  state.set_multithreading_enabled(before);
}

/// test_python_thread_in_middle, test_backward_tls_stash: steps on several threads at once do not meet.
TEST(PythonThreadInMiddle, StepsOfSeveralThreadsDoNotMeet) {
  Toy reference;
  const Outcome plain = reference.step({});
  std::vector<int> equal(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < equal.size(); ++i)
    threads.emplace_back([&, i] {
      Toy mine;
      RecomputeState sites;
      for (int step = 0; step < 5; ++step) equal[i] += mine.step(recomputed(&sites)) == plain ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, (std::vector<int>{5, 5, 5, 5}));
}

}  // namespace
}  // namespace trainer::test
