#include <ATen/core/Tensor.h>
#include <execution/guarded_strategies.hpp>
#include <plugin/guard.hpp>

namespace trainer::execution {

std::unique_ptr<FrozenWeight> GuardedFormat::pack(const LinearState& linear, const std::string& name,
                                                  WeightSource& source, at::ScalarType compute) {
  return plugin::guard(plugin_, "pack", [&] { return inner_.pack(linear, name, source, compute); });
}
int64_t GuardedFormat::bytes(const LinearState& linear, at::ScalarType compute) const {
  return plugin::guard(plugin_, "bytes", [&] { return inner_.bytes(linear, compute); });
}

std::shared_ptr<void> GuardedStore::put(const at::Tensor& tensor, const Site& site) {
  return plugin::guard(plugin_, "put", [&] { return inner_.put(tensor, site); });
}
at::Tensor GuardedStore::take(const std::shared_ptr<void>& handle, const Site& site) {
  return plugin::guard(plugin_, "take", [&] { return inner_.take(handle, site); });
}

void GuardedResidency::plan(std::span<Block* const> blocks) {
  plugin::guard(plugin_, "plan", [&] { inner_.plan(blocks); });
}
void GuardedResidency::before(const Site& site, Pass pass) {
  plugin::guard(plugin_, "before", [&] { inner_.before(site, pass); });
}

bool GuardedSave::keep(const HeavyOp& op) {
  return plugin::guard(plugin_, "keep", [&] { return inner_.keep(op); });
}

CheckpointOptions GuardedPolicy::choose(const Site& site) {
  CheckpointOptions options = plugin::guard(plugin_, "choose", [&] { return inner_.choose(site); });
  if (options.save == nullptr) return options;
  std::unique_ptr<GuardedSave>& guarded = saves_[options.save];
  if (guarded == nullptr) guarded = std::make_unique<GuardedSave>(*options.save, plugin_);
  options.save = guarded.get();
  return options;
}
void GuardedPolicy::after_first_step() {
  plugin::guard(plugin_, "after_first_step", [&] { inner_.after_first_step(); });
}

}  // namespace trainer::execution
