#include <ATen/core/Tensor.h>
#include <base/hash.hpp>
#include <train/assembly/checked_strategies.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::train {
namespace {

std::string_view bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const char*>(contiguous.data_ptr()), contiguous.nbytes()};
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.detach().to(tensor.options().device(at::kCPU), /*non_blocking=*/false, /*copy=*/true).contiguous();
}

struct Held {
  std::shared_ptr<void> handle;
  at::Tensor copy;
  at::Device device = at::kCPU;
};

std::string hash_of(const FrozenWeight& weight) {
  const at::Tensor dense = on_cpu(weight.dense(at::kFloat));
  return xxh128(bytes_of(dense));
}

}  // namespace

std::shared_ptr<void> CheckedStore::put(const at::Tensor& tensor, const Site& site) {
  auto held = std::make_shared<Held>();
  if (tensor.defined()) held->copy = on_cpu(tensor), held->device = tensor.device();
  held->handle = inner_.put(tensor, site);
  return held;
}

at::Tensor CheckedStore::take(const std::shared_ptr<void>& handle, const Site& site) {
  const auto held = std::static_pointer_cast<Held>(handle);
  at::Tensor back = inner_.take(held->handle, site);
  const auto fail = [&](const std::string& what) {
    throw PluginError(plugin_, "take", "an input of block \"" + site.block->info().name + "\" came back " + what);
  };
  if (back.defined() != held->copy.defined()) fail("undefined");
  if (!back.defined()) return back;
  if (back.scalar_type() != held->copy.scalar_type() || back.sizes() != held->copy.sizes() ||
      back.device() != held->device)
    fail("with another dtype, shape or device");
  const at::Tensor now = on_cpu(back);
  if (bytes_of(now) != bytes_of(held->copy)) fail("with other numbers than it was stored with");
  return back;
}

void CheckedResidency::plan(std::span<Block* const> blocks) {
  for (const Block* block : blocks)
    for (const Linear& linear : block->info().linears)
      if (const auto& frozen = linear.state().frozen) hashes_[linear.name()] = hash_of(*frozen);
  inner_.plan(blocks);
}

void CheckedResidency::before(const Site& site, Pass pass) {
  inner_.before(site, pass);
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

}  // namespace trainer::train
