/// @file What autograd really saves, seen from outside the recompute engine: an autograd engine whose saved-tensor
/// hooks list every tensor as it is saved. For tests alone; one per process, installed before the first graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace trainer::test {

/// One tensor that a node of the graph saves.
struct SavedTensor {
  const void* storage = nullptr;  ///< who shares it, shares memory
  int64_t storage_bytes = 0;      ///< of the whole storage: a view keeps all of its base
  std::string producer;           ///< name of the node that made it; "leaf", or "constant" without a gradient
  std::string shape;              ///< dtype and sizes
  bool operator==(const SavedTensor& other) const { return producer == other.producer && shape == other.shape; }
};

/// For GoogleTest's messages.
inline void PrintTo(const SavedTensor& saved, std::ostream* out) { *out << saved.shape << " of " << saved.producer; }

/// Takes the place of LibTorch's engine. Must be called before any graph is made in this process.
void install_listing_engine();

/// Lists what is saved on this thread as long as it lives. Does not nest.
class SavedTensors {
 public:
  SavedTensors();
  ~SavedTensors();
  SavedTensors(const SavedTensors&) = delete;
  SavedTensors& operator=(const SavedTensors&) = delete;

  [[nodiscard]] const std::vector<SavedTensor>& list() const { return list_; }
  /// Bytes of the storages among the list, each counted once, that none of `existing` shares.
  [[nodiscard]] int64_t bytes_besides(const std::vector<at::Tensor>& existing) const;
  /// Bytes of those that some of `existing` share.
  [[nodiscard]] int64_t bytes_among(const std::vector<at::Tensor>& existing) const;
  void add(const at::Tensor& tensor);

 private:
  std::vector<SavedTensor> list_;
};

}  // namespace trainer::test
