/// @file test_flops_and_mem of PyTorch's TestSelectiveActivationCheckpoint: tensors kept and matrix products in
/// backward of one product between elementwise functions. None keeps 2 and runs 2, full keeps 0 and runs 3, selective
/// keeps 1.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sin.h>
#include <ATen/record_function.h>
#include <support/counting_allocator.hpp>

#include "chain.hpp"

namespace trainer::test {
namespace {

thread_local int64_t products = 0;

std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
  if (std::string(function.name()) == "aten::mm") ++products;
  return nullptr;
}

/// (tensors kept besides inputs and output, matrix products in backward)
std::pair<int64_t, int64_t> cost(const BlockRun& how) {
  constexpr int64_t kSize = 64, kTensor = kSize * kSize * 4;
  const ParameterPtr weight = make_trained("w", {kSize, kSize}, 1);
  LambdaBlock block("b", [&](const Flow& flow) {
    return std::vector<at::Tensor>{at::cos(at::sin(at::mm(flow.carried[0], weight->get())))};
  });
  block.add(weight);
  const at::Tensor x = data(2, {kSize, kSize}).requires_grad_();
  const CountingAllocator counter;
  const Flow end = run_chain({&block}, {{x}, {}, {}}, how);
  const int64_t kept = (counter.live() + kTensor / 2) / kTensor - 1;
  const at::Tensor loss = end.carried[0].sum();
  products = 0;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(count));
  loss.backward();
  at::removeCallback(handle);
  return {kept, products};
}

TEST(FlopsAndMem, OfNoneFullAndSelective) {
  using Cost = std::pair<int64_t, int64_t>;
  selective::SaveList save({"mm"});
  EXPECT_EQ(cost({}), Cost(2, 2));
  EXPECT_EQ(cost(recomputed()), Cost(0, 3));
  // A kept product passes the observer too; that it is not run again is what save_test counts.
  EXPECT_EQ(cost(keeping(save)).first, 1);
}

}  // namespace
}  // namespace trainer::test
