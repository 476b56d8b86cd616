/// @file Activation offload: the inputs that recomputed blocks keep wait in host memory. A shared tensor comes once for
/// each block; it is copied once, and what the blocks hold is the same copy.
#include <c10/util/intrusive_ptr.h>
#include <trainer/sdk/plugin.hpp>

#include <unordered_map>

namespace {

using Source = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// A copy on the host, and where the tensor came from.
struct Copy {
  at::Tensor host;
  at::Device home = at::kCPU;
};

/// With the same strides, since kernels choose their route by them.
at::Tensor copied(const at::Tensor& tensor, at::Device device) {
  const at::Tensor source = tensor.detach();
  const auto copy = [&](const at::Tensor& data) {
    return data.to(data.options().device(device), /*non_blocking=*/false, /*copy=*/true);
  };
  if (source.is_non_overlapping_and_dense() || source.numel() == 0) return copy(source);
  int64_t span = 1;
  for (int64_t i = 0; i < source.dim(); ++i) span += (source.size(i) - 1) * source.stride(i);
  return copy(source.as_strided({span}, {1})).as_strided(source.sizes(), source.strides(), 0);
}

class HostMemory final : public trainer::ActivationStore {
 public:
  std::shared_ptr<void> put(const at::Tensor& tensor, const trainer::Site&) override {
    Known& known = known_[tensor.unsafeGetTensorImpl()];
    // An address may come back with another tensor: the weak reference tells whether it is still the one.
    const bool same = !known.source.expired() && known.version == tensor._version();
    if (same)
      if (std::shared_ptr<Copy> copy = known.copy.lock()) return copy;
    auto copy = std::make_shared<Copy>(Copy{copied(tensor, at::kCPU), tensor.device()});
    known = {Source(tensor.getIntrusivePtr()), static_cast<int64_t>(tensor._version()), copy};
    if (known_.size() > kForgetAbove) forget();
    return copy;
  }
  at::Tensor take(const std::shared_ptr<void>& handle, const trainer::Site&) override {
    const auto copy = std::static_pointer_cast<Copy>(handle);
    // On the host itself the copy would be handed out and could be changed: a take must not spoil the next one.
    return copied(copy->host, copy->home);
  }

 private:
  struct Known {
    Source source{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    int64_t version = 0;
    std::weak_ptr<Copy> copy;
  };
  static constexpr std::size_t kForgetAbove = 256;

  void forget() {
    std::erase_if(known_, [](const auto& entry) { return entry.second.copy.expired(); });
  }

  std::unordered_map<const c10::TensorImpl*, Known> known_;
};

class HostOffload final : public trainer::MemoryStrategy {
 public:
  trainer::ActivationStore* activation_store() override { return &store_; }

 private:
  HostMemory store_;
};

void init(trainer::Registrar& registrar) {
  registrar.add(
      trainer::MemoryComponent{"host_offload", [](const trainer::Options&) -> std::unique_ptr<trainer::MemoryStrategy> {
                                 return std::make_unique<HostOffload>();
                               }});
}

}  // namespace

TRAINER_PLUGIN("host_offload", "0.1.0", init)
