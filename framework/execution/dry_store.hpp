/// @file Stands for an activation store in a run on shapes: what it takes over is counted as held by the host, which is
/// where such stores keep it; a store that writes to disk needs less.
#pragma once

#include <c10/core/Device.h>
#include <trainer/sdk/memory.hpp>

#include <memory>
#include <unordered_map>

namespace trainer::execution {

class DryStore final : public ActivationStore {
 public:
  /// `host`: the dry device that stands for it.
  explicit DryStore(at::Device host);
  ~DryStore() override;
  std::shared_ptr<void> put(const at::Tensor& tensor, const Site& site) override;
  at::Tensor take(const std::shared_ptr<void>& handle, const Site& site) override;

 private:
  struct Known;
  at::Device host_;
  std::unordered_map<const void*, Known> known_;  ///< a shared tensor comes once for every block: it is held once
};

}  // namespace trainer::execution
