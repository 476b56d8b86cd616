/// @file test_flops_and_mem of PyTorch's TestSelectiveActivationCheckpoint: tensors kept and matrix products in
/// backward of one product between elementwise functions. None keeps 2 and runs 2, full keeps 0 and runs 3, selective
/// keeps 1 and runs 2.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sin.h>
#include <planner/byte_counter.hpp>

#include "chain.hpp"

namespace trainer::test {
namespace {

/// (tensors kept besides inputs and output, matrix products in backward)
std::pair<int64_t, int64_t> cost(const BlockRun& how) {
  constexpr int64_t kSize = 64, kTensor = kSize * kSize * 4;
  const ParameterPtr weight = make_trained("w", {kSize, kSize}, 1);
  LambdaBlock block("b", [&](const Flow& flow) {
    return std::vector<at::Tensor>{at::cos(at::sin(at::mm(flow.carried[0], weight->get())))};
  });
  block.add(weight);
  const at::Tensor x = data(2, {kSize, kSize}).requires_grad_();
  const planner::PeakMark mark(at::kCPU);
  const Flow end = run_chain({&block}, {{x}, {}, {}}, how);
  const int64_t kept = (mark.held() + kTensor / 2) / kTensor - 1;
  const at::Tensor loss = end.carried[0].sum();
  const FlopCounter executed;
  loss.backward();
  return {kept, std::llround(executed.flops() / (2.0 * kSize * kSize * kSize))};
}

TEST(FlopsAndMem, OfNoneFullAndSelective) {
  using Cost = std::pair<int64_t, int64_t>;
  planner::install_byte_counter();
  selective::SaveList save({"mm"});
  EXPECT_EQ(cost({}), Cost(2, 2));
  EXPECT_EQ(cost(recomputed()), Cost(0, 3));
  EXPECT_EQ(cost(keeping(save)), Cost(1, 2));
}

}  // namespace
}  // namespace trainer::test
