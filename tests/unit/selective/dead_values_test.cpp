/// @file Dead-value elision never changes a gradient, also not later in training: max-like operations, comparisons,
/// adapters that start at zero, streams that nothing reads.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "chain.hpp"

namespace trainer::test {
namespace {

using Strings = std::vector<std::string>;
using Activation = std::function<at::Tensor(const at::Tensor&)>;

constexpr int64_t kWidth = 32;

struct Act {
  const char* name;
  Activation apply;
};
const Act kActs[] = {
    {"silu", [](const at::Tensor& y) { return at::silu(y); }},
    {"relu", [](const at::Tensor& y) { return at::relu(y); }},
    {"leaky_relu", [](const at::Tensor& y) { return at::leaky_relu(y, 0.1); }},
    {"maximum", [](const at::Tensor& y) { return at::maximum(y, at::zeros({1})); }},
    {"where", [](const at::Tensor& y) { return at::where(y > 0, y, y * 0.1); }},
    {"clamp", [](const at::Tensor& y) { return at::clamp(y, -65504, 65504); }},
    {"mask", [](const at::Tensor& y) { return y * at::gt(y, -1e9).to(y.scalar_type()); }},
};

/// y = act(h W + h A B + bias); x + y W2: calls mm#0 (frozen), mm#1, mm#2 (adapter), mm#3 (frozen, last).
class MlpTest : public testing::TestWithParam<std::tuple<Act, double, double>> {
 protected:
  MlpTest() : first_(body(0), "b.0"), last_(body(1), "b.1") {
    for (uint64_t i = 0; i < 2; ++i) {
      Single& block = i == 0 ? first_ : last_;
      a_.push_back(
          block.block.add(std::make_shared<Parameter>("a", (data(10 + i, {kWidth, 4}) * 0.2).requires_grad_())));
      b_.push_back(block.block.add(std::make_shared<Parameter>("b", at::zeros({4, kWidth}).requires_grad_())));
    }
  }
  Body body(std::size_t i) {
    return [this, i](const Flow& flow) -> std::vector<at::Tensor> {
      const at::Tensor h = at::layer_norm(flow.carried[0], {kWidth});
      const at::Tensor y = at::mm(h, w_) + at::mm(at::mm(h, a_[i]->get()), b_[i]->get()) + bias_;
      return {flow.carried[0] + at::mm(std::get<0>(GetParam()).apply(y), w2_)};
    };
  }
  std::vector<at::Tensor> step(const BlockRun& how) {
    const at::Tensor out = run_chain({&first_.block, &last_.block}, {{x_}, {}, {}}, how).carried[0];
    out.pow(2).sum().backward();
    std::vector<at::Tensor> grads;
    for (const auto* list : {&a_, &b_})
      for (const ParameterPtr& parameter : *list) {
        grads.push_back(parameter->value().grad());
        parameter->value().mutable_grad() = at::Tensor();
      }
    return grads;
  }
  void set_bias(double value) {
    const at::NoGradGuard guard;
    bias_.fill_(value);
  }
  at::Tensor w_ = data(1, {kWidth, kWidth}) * 0.1, w2_ = data(2, {kWidth, kWidth}) * 0.1, bias_ = at::zeros({kWidth});
  at::Tensor x_ = data(3, {8, kWidth}).requires_grad_();
  std::vector<ParameterPtr> a_, b_;
  Single first_, last_;
};

TEST_P(MlpTest, StaysRightWhenValuesChangeSign) {
  RecomputeState sites;
  const auto& [act, before, after] = GetParam();
  set_bias(before);
  EXPECT_TRUE(same_bits(step({}), step(eliding(sites))));
  EXPECT_EQ(sites.reports.at("toy").dead, Strings{"mm#3"});
  set_bias(after);
  EXPECT_TRUE(same_bits(step({}), step(eliding(sites))));
  {
    const at::NoGradGuard guard;
    for (const ParameterPtr& b : b_) b->value().copy_(data(9, {4, kWidth}));
  }
  EXPECT_TRUE(same_bits(step({}), step(eliding(sites))));
  sites.recheck_elision();
  EXPECT_TRUE(same_bits(step({}), step(eliding(sites))));
  EXPECT_TRUE(sites.stale.empty());
  EXPECT_EQ(sites.reports.at("toy").dead, Strings{"mm#3"});
}

INSTANTIATE_TEST_SUITE_P(All, MlpTest,
                         testing::Combine(testing::ValuesIn(kActs), testing::Values(6.0, -6.0, 20.0, 1000.0, -1000.0),
                                          testing::Values(0.2)),
                         [](const auto& info) {
                           const double bias = std::get<1>(info.param);
                           return std::string(std::get<0>(info.param).name) + (bias < 0 ? "_minus_" : "_plus_") +
                                  std::to_string(static_cast<int>(std::abs(bias)));
                         });

/// Image and text streams joined by an attention; nothing reads the text of the last block.
class Streams : public testing::Test {
 protected:
  Streams() {
    for (uint64_t i = 0; i < 3; ++i) {
      blocks_.push_back(std::make_unique<LambdaBlock>("b." + std::to_string(i)));
      ParameterPtr pair[2][2];
      for (auto& adapter : pair) {
        adapter[0] = blocks_.back()->add(make_trained("a", {kWidth, 4}, 20 + seed_++));
        adapter[1] = blocks_.back()->add(std::make_shared<Parameter>("b", at::zeros({4, kWidth}).requires_grad_()));
      }
      const at::Tensor w = data(1 + i, {kWidth, kWidth}) * 0.15, w2 = data(5 + i, {kWidth, kWidth}) * 0.15;
      blocks_.back()->body = [=](const Flow& flow) -> std::vector<at::Tensor> {
        const at::Tensor &image = flow.carried[0], &text = flow.carried[1];
        const auto adapter = [](const at::Tensor& x, const ParameterPtr* ab) {
          return at::mm(at::mm(x, ab[0]->get()), ab[1]->get());
        };
        const at::Tensor q = at::mm(at::layer_norm(image, {kWidth}), w);          // mm#0
        const at::Tensor k = at::mm(at::layer_norm(text, {kWidth}), w2);          // mm#1
        const at::Tensor a = at::mm(at::softmax(at::mm(q, k.t()) * 0.2, -1), k);  // mm#2, mm#3
        const at::Tensor h = at::mm(at::layer_norm(text, {kWidth}), w);           // mm#4 and, with LoRA, mm#5, mm#6
        const at::Tensor next = text + at::mm(at::silu(h + adapter(text, pair[1])), w2);  // mm#7
        return {image + a + adapter(image, pair[0]), next};                               // mm#8, mm#9
      };
    }
  }
  std::vector<at::Tensor> step(const BlockRun& how, bool text_is_read) {
    std::vector<Block*> list;
    for (const auto& block : blocks_) list.push_back(block.get());
    const Flow out = run_chain(list, {{data(31, {16, kWidth}), data(32, {8, kWidth})}, {}, {}}, how);
    at::Tensor loss = out.carried[0].pow(2).sum();
    if (text_is_read) loss = loss + out.carried[1].pow(2).sum();
    loss.backward();
    std::vector<at::Tensor> grads;
    for (Block* block : list)
      for (Parameter* parameter : block->trainable()) {
        grads.push_back(parameter->value().grad());
        parameter->value().mutable_grad() = at::Tensor();
      }
    return grads;
  }
  uint64_t seed_ = 0;
  std::vector<std::unique_ptr<LambdaBlock>> blocks_;
};

TEST_F(Streams, TheUnreadStreamIsDeadInTheLastBlockOnly) {
  RecomputeState sites;
  EXPECT_TRUE(same_bits(step({}, false), step(eliding(sites), false)));
  // First block: no gradient into its inputs. Middle: both outputs. Last: the image alone.
  ASSERT_EQ(sites.dead.size(), 3U);
  std::multiset<std::size_t> sizes;
  for (const auto& [site, dead] : sites.dead) sizes.insert(dead.size());
  const std::set<int64_t> last{3, 4, 5, 6, 7, 9}, middle{3, 7, 9};
  std::set<std::set<int64_t>> found;
  for (const auto& [site, dead] : sites.dead) found.insert(dead);
  EXPECT_TRUE(found.contains(last));
  EXPECT_TRUE(found.contains(middle));

  EXPECT_TRUE(same_bits(step({}, true), step(eliding(sites), true)));
  EXPECT_EQ(sites.dead.size(), 4U);  // with both outputs' gradients the last block is at the middle one's site
  {
    const at::NoGradGuard guard;
    uint64_t seed = 50;
    for (const auto& block : blocks_)
      for (Parameter* parameter : block->trainable())
        parameter->value().copy_(data(seed++, parameter->value().sizes()));
  }
  for (const bool text : {false, true, false})
    EXPECT_TRUE(same_bits(step({}, text), step(eliding(sites), text))) << text;
  sites.recheck_elision();
  for (const bool text : {false, true}) EXPECT_TRUE(same_bits(step({}, text), step(eliding(sites), text))) << text;
}

}  // namespace
}  // namespace trainer::test
