/// @file The moving average of the parameters.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <optim/ema.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <support/parity.hpp>

namespace trainer::optim {
namespace {

struct Fixture {
  Parameter parameter{"w", at::tensor({1.0, -1.0}, at::kFloat).requires_grad_(true)};
  void set(double value) {
    const at::NoGradGuard no_grad;
    parameter.value().fill_(value);
  }
};

TEST(Ema, FollowsItsFormulaFromTheFirstUpdate) {
  Fixture f;
  Ema ema({&f.parameter}, 0.3);
  double expected = 1.0;
  for (int n = 0; n < 6; ++n) {
    f.set(n * n);
    ema.update();
    const double decay = std::min(0.3, (1.0 + n) / (10.0 + n));
    expected = decay * expected + (1 - decay) * n * n;
    EXPECT_NEAR(ema.state().at("w.ema")[0].item<double>(), expected, 1e-5) << n;
  }
  EXPECT_EQ(ema.state().at("ema.updates").item<int64_t>(), 6);
}

TEST(Ema, SwapTwiceReturns) {
  Fixture f;
  Ema ema({&f.parameter}, 0.5);
  f.set(4);
  ema.update();
  const at::Tensor trained = f.parameter.value().detach().clone(), shadow = ema.state().at("w.ema").clone();
  ASSERT_FALSE(test::same_bits(trained, shadow));
  ema.swap();
  EXPECT_TRUE(test::same_bits(f.parameter.value().detach(), shadow));
  EXPECT_TRUE(f.parameter.value().requires_grad());
  ema.swap();
  EXPECT_TRUE(test::same_bits(f.parameter.value().detach(), trained));
  EXPECT_TRUE(test::same_bits(ema.state().at("w.ema"), shadow));
}

TEST(Ema, StateGoesRoundAndWrongStateIsRefused) {
  Fixture f, g;
  Ema ema({&f.parameter}, 0.9), other({&g.parameter}, 0.9);
  f.set(4);
  ema.update();
  NamedTensors saved;
  for (const auto& [name, tensor] : ema.state()) saved[name] = tensor.clone();
  other.load_state(saved);
  g.set(4);
  f.set(7), g.set(7);
  ema.update(), other.update();
  for (const auto& [name, tensor] : ema.state()) EXPECT_TRUE(test::same_bits(tensor, other.state().at(name))) << name;

  NamedTensors missing = saved, unknown = saved, shape = saved;
  missing.erase("ema.updates");
  unknown["x.ema"] = at::zeros({1});
  shape["w.ema"] = at::zeros({3});
  EXPECT_THROW(other.load_state(missing), Error);
  EXPECT_THROW(other.load_state(shape), Error);
  try {
    other.load_state(unknown);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the EMA state has an unknown \"x.ema\"");
  }
}

}  // namespace
}  // namespace trainer::optim
