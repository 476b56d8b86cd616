#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <base/hash.hpp>
#include <execution/checked_strategies.hpp>
#include <execution/keyed_random.hpp>
#include <planner/uncounted_copy.hpp>
#include <trainer/sdk/error.hpp>

#include <cstdio>

namespace trainer::execution {
namespace {

std::string_view bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const char*>(contiguous.data_ptr()), contiguous.nbytes()};
}

struct Held {
  std::shared_ptr<void> handle;
  at::Tensor copy;
  at::Device device = at::kCPU;
};

std::string hash_of(const FrozenWeight& weight) {
  const at::Tensor dense = planner::uncounted_copy(weight.dense(at::kFloat));
  return xxh128(bytes_of(dense));
}

}  // namespace

std::shared_ptr<void> CheckedStore::put(const at::Tensor& tensor, const Site& site) {
  auto held = std::make_shared<Held>();
  if (tensor.defined()) held->copy = planner::uncounted_copy(tensor), held->device = tensor.device();
  held->handle = inner_->put(tensor, site);
  return held;
}

at::Tensor CheckedStore::take(const std::shared_ptr<void>& handle, const Site& site) {
  const auto held = std::static_pointer_cast<Held>(handle);
  at::Tensor back = inner_->take(held->handle, site);
  const auto fail = [&](const std::string& what) {
    throw PluginError(plugin_, "take", "an input of block \"" + site.block->info().name + "\" came back " + what);
  };
  if (back.defined() != held->copy.defined()) fail("undefined");
  if (!back.defined()) return back;
  if (back.scalar_type() != held->copy.scalar_type() || back.sizes() != held->copy.sizes() ||
      back.device() != held->device)
    fail("with another dtype, shape or device");
  const at::Tensor now = planner::uncounted_copy(back);
  if (bytes_of(now) != bytes_of(held->copy)) fail("with other numbers than it was stored with");
  return back;
}

std::unique_ptr<FrozenWeight> CheckedFormat::pack(const LinearState& linear, const std::string& name,
                                                  WeightSource& source, at::ScalarType compute) {
  std::unique_ptr<FrozenWeight> weight = inner_->pack(linear, name, source, compute);
  if (weight == nullptr || linear.in == 0 || linear.out == 0) return weight;
  const at::Tensor dense = weight->dense(compute);
  if (dense.scalar_type() != compute || dense.sizes() != at::IntArrayRef{linear.out, linear.in})
    throw PluginError(plugin_, "dense",
                      "the weight of \"" + linear.name + "\" has another dtype or shape than it should");
  if (dense.device().is_meta()) return weight;
  const DenseWeight claimed(dense);
  constexpr int64_t kRows = 3;
  const auto numbers = [&](uint64_t stream, int64_t columns) {
    return keyed_normal(KeyedRng(/*seed=*/1, RngStream::synthetic, stream), {kRows, columns}).to(dense.options());
  };
  const at::Tensor x = numbers(0, linear.in), g = numbers(1, linear.out);
  check("matmul", linear.name, weight->matmul(x), claimed.matmul(x));
  check("grad_input", linear.name, weight->grad_input(g), claimed.grad_input(g));
  return weight;
}

void CheckedFormat::check(const std::string& call, const std::string& layer, const at::Tensor& got,
                          const at::Tensor& expected) const {
  const auto fail = [&](const std::string& what) {
    throw PluginError(plugin_, call, "the product with the packed weight of \"" + layer + "\" " + what);
  };
  if (!got.defined() || got.scalar_type() != expected.scalar_type() || got.sizes() != expected.sizes())
    fail("has another dtype or shape than the product with its dense()");
  if (got.requires_grad()) fail("records autograd history");
  if (bytes_of(planner::uncounted_copy(got)) == bytes_of(planner::uncounted_copy(expected))) return;
  const at::Tensor wide = expected.to(at::kDouble);
  const double scale = wide.norm().item<double>();
  const double apart = (got.to(at::kDouble) - wide).norm().item<double>() / (scale > 0 ? scale : 1);
  if (apart <= rounding_) return;  // false for NaN
  char text[160];
  std::snprintf(text, sizeof text,
                "is %.2g of its norm away from the product with its own dense(); declared: %.2g (rounding in "
                "[tolerance] of the manifest)",
                apart, rounding_);
  fail(text);
}

void CheckedResidency::plan(std::span<Block* const> blocks) {
  for (const Block* block : blocks)
    for (const Linear& linear : block->info().linears)
      if (const auto& frozen = linear.state().frozen) hashes_[linear.name()] = hash_of(*frozen);
  inner_->plan(blocks);
}

void CheckedResidency::before(const Site& site, Pass pass) {
  inner_->before(site, pass);
  for (const Linear& linear : site.block->info().linears) {
    const auto known = hashes_.find(linear.name());
    const auto& frozen = linear.state().frozen;
    if (known == hashes_.end()) continue;
    if (frozen == nullptr || hash_of(*frozen) != known->second)
      throw PluginError(plugin_, pass == Pass::forward ? "before forward" : "before backward",
                        "the weight of \"" + linear.name() + "\" is not what it was when block \"" +
                            site.block->info().name + "\" is to run");
  }
}

}  // namespace trainer::execution
