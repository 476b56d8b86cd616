/// @file One operation on simulated devices: the CPU's kernel on the same bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace c10 {
class OperatorHandle;
}

namespace trainer::sim {

/// Aliases the sim arguments of a call as CPU tensors over the same bytes, and turns results back into sim tensors by
/// moving their memory, never copying it.
class Call {
 public:
  /// `op`: for messages; outlives the call.
  explicit Call(const std::string& op) : name_(op) {}

  /// Notes an argument and its device. Throws c10::Error, worded as CUDA's, when sim devices are mixed.
  void see(const at::Tensor& tensor, const char* argument, bool written = false);
  void see(c10::Device device) {
    if (!device_) device_ = device;
  }
  /// Throws the same when a CPU tensor that is no 0-dim number takes part.
  void check() const;
  [[nodiscard]] c10::Device device() const;

  at::Tensor wrap(const at::Tensor& tensor, bool written = false);
  at::Tensor unwrap(const at::Tensor& tensor);
  /// Takes over what a kernel resized (out= variants, resize_).
  void sync();

 private:
  struct Wrapped {
    at::Tensor sim, cpu;
    bool written = false;
  };
  [[noreturn]] void fail(c10::Device other, const char* argument) const;
  c10::Storage alias(const c10::Storage& storage);
  /// The bytes of a CPU storage, taken over for the device.
  c10::DataPtr adopt(c10::StorageImpl* storage, std::size_t users);

  std::vector<Wrapped> wrapped_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  ///< sim, CPU
  std::vector<at::Tensor> host_;                                 ///< 0-dim CPU arguments
  std::optional<c10::Device> device_;
  std::string host_argument_;  ///< a CPU tensor of more than 0 dimensions, if any
  const std::string& name_;
};

/// Runs `target` (usually `op` itself) on the arguments of `op` on the stack.
void run_on_cpu(const c10::OperatorHandle& op, const c10::OperatorHandle& target, std::vector<c10::IValue>* stack);

}  // namespace trainer::sim
