/// @file The parts of a memory strategy that the engine calls in the middle of a step, so that what they throw names
/// the plugin that owns them: without it a store that fails is told as a fault of the model.
#pragma once

#include <trainer/sdk/memory.hpp>

#include <map>
#include <memory>
#include <string>

namespace trainer::execution {

/// All borrow what they wrap; `plugin` is who is named.
class GuardedFormat final : public WeightFormat {
 public:
  GuardedFormat(WeightFormat& inner, std::string plugin) : inner_(inner), plugin_(std::move(plugin)) {}
  std::unique_ptr<FrozenWeight> pack(const LinearState& linear, const std::string& name, WeightSource& source,
                                     at::ScalarType compute) override;
  [[nodiscard]] int64_t bytes(const LinearState& linear, at::ScalarType compute) const override;

 private:
  WeightFormat& inner_;
  std::string plugin_;
};

class GuardedStore final : public ActivationStore {
 public:
  GuardedStore(ActivationStore& inner, std::string plugin) : inner_(inner), plugin_(std::move(plugin)) {}
  std::shared_ptr<void> put(const at::Tensor& tensor, const Site& site) override;
  at::Tensor take(const std::shared_ptr<void>& handle, const Site& site) override;

 private:
  ActivationStore& inner_;
  std::string plugin_;
};

class GuardedResidency final : public WeightResidency {
 public:
  GuardedResidency(WeightResidency& inner, std::string plugin) : inner_(inner), plugin_(std::move(plugin)) {}
  void plan(std::span<Block* const> blocks) override;
  void before(const Site& site, Pass pass) override;
  void after(const Site& site, Pass pass) noexcept override { inner_.after(site, pass); }

 private:
  WeightResidency& inner_;
  std::string plugin_;
};

class GuardedSave final : public SavePolicy {
 public:
  GuardedSave(SavePolicy& inner, std::string plugin) : inner_(inner), plugin_(std::move(plugin)) {}
  bool keep(const HeavyOp& op) override;

 private:
  SavePolicy& inner_;
  std::string plugin_;
};

/// The policy's own answers, with what keeps outputs guarded.
class GuardedPolicy final : public RecomputePolicy {
 public:
  GuardedPolicy(RecomputePolicy& inner, std::string plugin) : inner_(inner), plugin_(std::move(plugin)) {}
  CheckpointOptions choose(const Site& site) override;
  void after_first_step() override;

 private:
  RecomputePolicy& inner_;
  std::string plugin_;
  std::map<SavePolicy*, std::unique_ptr<GuardedSave>> saves_;
};

}  // namespace trainer::execution
