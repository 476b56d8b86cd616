/// @file A frozen layer and its low-rank adapter in one node: what it writes over, what it keeps, and that nothing of
/// it depends on what a recompute keeps or leaves out.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/autograd.h>
#include <trainer/sdk/low_rank.hpp>
#include <trainer/sdk/ops/fused.hpp>

#include "chain.hpp"

namespace trainer::test {
namespace {

using Strings = std::vector<std::string>;
using torch::autograd::grad;

/// Notes where its results lie; `holds` them where it is told to.
class NotingWeight final : public FrozenWeight {
 public:
  explicit NotingWeight(at::Tensor weight, bool holding = false) : dense_(std::move(weight)), holding_(holding) {}
  [[nodiscard]] at::Tensor matmul(const at::Tensor& x) const override { return noted(dense_.matmul(x)); }
  [[nodiscard]] at::Tensor grad_input(const at::Tensor& g) const override { return noted(dense_.grad_input(g)); }
  [[nodiscard]] at::Tensor dense(at::ScalarType dtype) const override { return dense_.dense(dtype); }
  [[nodiscard]] int64_t bytes() const override { return dense_.bytes(); }
  void to(at::Device device) override { dense_.to(device); }
  [[nodiscard]] std::vector<at::Tensor*> tensors() override { return dense_.tensors(); }
  mutable std::vector<const void*> places;
  mutable std::vector<at::Tensor> held;

 private:
  at::Tensor noted(at::Tensor result) const {
    places.push_back(result.const_data_ptr());
    if (holding_) held.push_back(result);
    return result;
  }
  DenseWeight dense_;
  bool holding_;
};

class PairOf final : public LowRankAdapter {
 public:
  PairOf(at::Tensor a, at::Tensor b) : a_("a", a.requires_grad_()), b_("b", b.requires_grad_()) {}
  [[nodiscard]] Pair pair() const override { return {a_.get(), b_.get(), 0.5}; }
  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&a_, &b_}; }

 private:
  Parameter a_, b_;
};

Linear adapted(uint64_t seed, int64_t in, int64_t out) {
  auto state = std::make_shared<LinearState>();
  state->name = "layer." + std::to_string(seed);
  state->in = in, state->out = out;
  state->frozen = std::make_shared<DenseWeight>(data(seed, {out, in}) * 0.2);
  state->adapter = std::make_unique<PairOf>(data(seed + 1, {4, in}) * 0.2, data(seed + 2, {out, 4}) * 0.2);
  return Linear(state);
}

struct Inputs {
  explicit Inputs(at::ScalarType dtype = at::kFloat)
      : x(data(1, {9, 20}, dtype).requires_grad_()),
        a(data(2, {4, 20}, adapter(dtype)).requires_grad_()),
        b(data(3, {12, 4}, adapter(dtype)).requires_grad_()),
        weight(data(4, {12, 20}, dtype)),
        direction(data(5, {9, 12}, dtype)) {}
  static at::ScalarType adapter(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }
  at::Tensor x, a, b, weight, direction;
};

TEST(LowRankLinear, WritesOverWhatItAloneHolds) {
  const Inputs in;
  const auto ours = std::make_shared<NotingWeight>(in.weight), theirs = std::make_shared<NotingWeight>(in.weight, true);
  const at::Tensor y = low_rank_linear(in.x, ours, in.a, in.b, 0.5);
  const at::Tensor other = low_rank_linear(in.x, theirs, in.a, in.b, 0.5);
  const at::Tensor grad_x = grad({y}, {in.x}, {in.direction})[0], other_x = grad({other}, {in.x}, {in.direction})[0];
  EXPECT_EQ(ours->places, (std::vector<const void*>{y.const_data_ptr(), grad_x.const_data_ptr()}));
  EXPECT_TRUE(same_bits(y.detach(), other.detach()));
  EXPECT_TRUE(same_bits(grad_x, other_x));
  ASSERT_EQ(theirs->held.size(), 2U);
  EXPECT_TRUE(same_bits(theirs->held[0], at::mm(in.x.detach(), in.weight.t()))) << "what another holds is left alone";
  EXPECT_TRUE(same_bits(theirs->held[1], at::mm(in.direction, in.weight)));
}

TEST(LowRankLinear, IsItsTwoNodes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const Inputs in(dtype);
    const auto weight = std::make_shared<DenseWeight>(in.weight);
    const at::Tensor one = low_rank_linear(in.x, weight, in.a, in.b, 0.5);
    const at::Tensor two = low_rank_sum(in.x, frozen_linear(in.x, weight), in.a, in.b, 0.5);
    EXPECT_TRUE(same_bits(one.detach(), two.detach()));
    const auto got = grad({one}, {in.x, in.a, in.b}, {in.direction});
    const auto expected = grad({two}, {in.x, in.a, in.b}, {in.direction});
    EXPECT_TRUE(same_bits(got[1], expected[1]));
    EXPECT_TRUE(same_bits(got[2], expected[2]));
    // The sum of the two gradients of x is rounded once, not three times.
    const double limit = dtype == at::kBFloat16 ? 2e-2 : dtype == at::kFloat ? 1e-6 : 1e-14;
    const double size = expected[0].abs().max().item<double>();
    EXPECT_LE((got[0] - expected[0]).abs().max().item<double>(), limit * size);
  }
}

TEST(LowRankLinear, LayersOfOneInputKeepIt) {
  const Inputs in;
  const auto weight = std::make_shared<NotingWeight>(in.weight);
  const at::Tensor leaf = data(6, {9, 20}).requires_grad_();
  at::Tensor x = leaf * 2;
  const c10::weak_intrusive_ptr<c10::StorageImpl> input(x.storage().getWeakStorageImpl());
  at::Tensor q = low_rank_linear(x, weight, in.a, in.b, 0.5), k = low_rank_linear(x, weight, in.a, in.b, 0.5);
  x.reset();
  EXPECT_EQ(weight.use_count(), 3) << "of the weight a node has the handle";
  q.reset();
  EXPECT_FALSE(input.expired()) << "the input itself, not a copy";
  k.reset();
  EXPECT_TRUE(input.expired());
}

TEST(LowRankLinear, HasASecondDerivative) {
  const auto second = [](bool one_node) {
    const Inputs in(at::kDouble);
    const auto weight = std::make_shared<DenseWeight>(in.weight);
    const at::Tensor y = low_rank_linear(in.x, weight, in.a, in.b, 0.5, one_node);
    const at::Tensor plain = at::mm(in.x, in.weight.t()) + at::mm(at::mm(in.x, in.a.t()), in.b.t()) * 0.5;
    const at::Tensor& used = one_node ? y : plain;
    const auto first = grad({used.pow(3).sum()}, {in.x, in.a, in.b}, {}, true, /*create_graph=*/true);
    return grad({first[0].pow(2).sum() + first[1].pow(2).sum() + first[2].pow(2).sum()}, {in.x, in.a, in.b});
  };
  const auto got = second(true), expected = second(false);
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(), 1e-10 * expected[i].abs().max().item<double>()) << i;
}

TEST(LowRankLinear, TakesNoRowsAndNoRank) {
  const auto weight = std::make_shared<DenseWeight>(data(4, {12, 20}));
  const at::Tensor none = low_rank_linear(data(1, {0, 20}), weight, data(2, {4, 20}), data(3, {12, 4}), 0.5);
  EXPECT_EQ(none.sizes(), (std::vector<int64_t>{0, 12}));
  const at::Tensor x = data(1, {9, 20}).requires_grad_();
  const at::Tensor y = low_rank_linear(x, weight, data(2, {0, 20}), data(3, {12, 0}), 0.5);
  EXPECT_TRUE(same_bits(y.detach(), weight->matmul(x.detach())));
  EXPECT_TRUE(same_bits(grad({y}, {x}, {y.detach()})[0], weight->grad_input(y.detach())));
  const at::Tensor sum = low_rank_sum(x, y.detach(), data(2, {0, 20}), data(3, {12, 0}), 0.5);
  EXPECT_TRUE(same_bits(sum.detach(), y.detach()));
  EXPECT_EQ(grad({sum}, {x}, {y.detach()})[0].abs().max().item<double>(), 0);
  EXPECT_THROW(low_rank_linear(x, weight, data(2, {4, 19}), data(3, {12, 4}), 0.5), c10::Error);
  EXPECT_THROW(low_rank_linear(x, weight, data(2, {4, 20}), data(3, {11, 4}), 0.5), c10::Error)
      << "a row of B is missing";
}

/// x + down(silu(up(x))): frozen_linear, low_rank_down and low_rank_up of `up`, then of `down`, whose products nothing
/// reads in a recompute.
class KeptLowRank : public ::testing::TestWithParam<Strings> {
 protected:
  KeptLowRank() : single({}) {
    const Linear up = single.block.add(adapted(10, 16, 24)), down = single.block.add(adapted(20, 24, 16));
    single.carried = {data(30, {7, 16}).requires_grad_()};
    single.block.body = [=](const Flow& flow) -> std::vector<at::Tensor> {
      return {flow.carried[0] + down(at::silu(up(flow.carried[0])))};
    };
  }
  /// Gradients of the parameters, then that of the input.
  std::vector<at::Tensor> step(const BlockRun& how) {
    std::vector<at::Tensor> grads = single.step(how);
    grads.push_back(single.carried[0].grad().clone());
    single.carried[0].mutable_grad() = at::Tensor();
    return grads;
  }
  Single single;
};

TEST_P(KeptLowRank, ChangesNoBit) {
  const std::vector<at::Tensor> plain = step({});
  for (const bool elide : {false, true}) {
    RecomputeState sites;
    sites.always = true;
    selective::SaveList save(GetParam());
    BlockRun how = GetParam().empty() ? recomputed(&sites) : keeping(save, &sites);
    how.options.elide = elide;
    for (int round = 0; round < 2; ++round) EXPECT_TRUE(same_bits(plain, step(how))) << elide << round;
    if (!elide) continue;
    const RecomputeReport& report = sites.reports.begin()->second;
    const Strings& dead = report.dead;
    const auto is_dead = [&](const char* op) { return std::find(dead.begin(), dead.end(), op) != dead.end(); };
    const auto is_kept = [&](const char* op) {
      return std::find(report.kept.begin(), report.kept.end(), op) != report.kept.end();
    };
    EXPECT_TRUE(is_dead("frozen_linear#1") || is_kept("frozen_linear#1"));
    EXPECT_TRUE(is_dead("low_rank_up#1") || is_kept("low_rank_up#1"));
    EXPECT_FALSE(is_dead("low_rank_down#1"));
    // A kept sum makes the product that it was written over unread.
    EXPECT_TRUE(!is_kept("low_rank_up#0") || is_kept("frozen_linear#0") || is_dead("frozen_linear#0"));
  }
}

INSTANTIATE_TEST_SUITE_P(Keeping, KeptLowRank,
                         ::testing::Values(Strings{}, Strings{"frozen_linear"}, Strings{"low_rank_up"},
                                           Strings{"low_rank_down"}, Strings{"frozen_linear", "low_rank_up"},
                                           Strings{"toy:frozen_linear#0", "toy:low_rank_down#1"}, Strings{"matmul"}),
                         [](const auto& info) {
                           std::string name = "none";
                           for (const std::string& op : info.param) name += op;
                           std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

}  // namespace
}  // namespace trainer::test
