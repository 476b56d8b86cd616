/// @file Plugins from outside the tree: built against the installed SDK alone, loaded by the Loader, trained a step.
#include "strangers.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>

#include <algorithm>

namespace trainer::strangers {
namespace {

TEST(OutOfTree, OffersAllKindsAndLoads) {
  EXPECT_TRUE(loader().found().problems.empty());
  for (const auto& [kind, name] : std::vector<std::pair<std::string, std::string>>{{"model", "toy"},
                                                                                   {"model", "toy_lm"},
                                                                                   {"model", "experts"},
                                                                                   {"objective", "next_token"},
                                                                                   {"text_encoder", "bytes"},
                                                                                   {"memory", "host_offload"},
                                                                                   {"memory", "block_swap"},
                                                                                   {"adapter", "lokr"}}) {
    loader().require(kind, name);
    const std::vector<std::string> names = loader().registry().names();
    EXPECT_NE(std::find(names.begin(), names.end(), kind + " " + name), names.end()) << name;
  }
}

/// Gradients of all parameters after one forward and backward.
std::vector<at::Tensor> gradients(bool recompute) {
  ToyChain chain(2, /*trained=*/true);
  EXPECT_EQ(chain.model().describe(), "a toy of 2 blocks");
  RecomputeState sites;
  BlockRun how;
  how.options.recompute = recompute;
  how.state = &sites;
  Flow flow = chain.model().prologue({{"latents", numbers(50, {2, 3, 1, 4, 5})}, {"timestep", at::ones({2}) * 0.25}});
  const at::Tensor velocity = chain.model().epilogue(chain.run(std::move(flow), how));
  EXPECT_EQ(velocity.sizes(), (std::vector<int64_t>{2, 3, 1, 4, 5}));
  velocity.pow(2).mean().backward();
  std::vector<at::Tensor> list;
  for (Parameter* parameter : assembly::trained_parameters(chain.inventory()))
    list.push_back(parameter->value().grad());
  return list;
}

TEST(OutOfTree, Trains) {
  const std::vector<at::Tensor> plain = gradients(false);
  ASSERT_EQ(plain.size(), 11U) << "5 linear layers' weights and biases, 2 blocks of 3";
  EXPECT_TRUE(same(plain, gradients(true)));
  for (const at::Tensor& gradient : plain) EXPECT_GT(gradient.abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace trainer::strangers
