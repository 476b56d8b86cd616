/// @file See saved_tensors.hpp.
#include "saved_tensors.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <set>
#include <sstream>

namespace trainer::test {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

thread_local SavedTensors* listing = nullptr;

/// Saves what would have been saved without it: the data, without the graph (which would be a cycle for outputs).
class ListingHooks final : public SavedVariableHooks {
 public:
  explicit ListingHooks(SavedTensors& list) : list_(list) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    list_.add(tensor);
    data_ = tensor.detach();
  }
  at::Tensor call_unpack_hook() override { return data_; }

 private:
  SavedTensors& list_;
  at::Tensor data_;
};

class ListingEngine final : public Engine {
 public:
  ~ListingEngine() override { stop(); }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return listing == nullptr ? nullptr : std::make_unique<ListingHooks>(*listing);
  }
};

Engine& listing_engine() {
  static ListingEngine engine;
  return engine;
}

std::set<const void*> storages_of(const std::vector<at::Tensor>& tensors) {
  std::set<const void*> set;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) set.insert(tensor.storage().unsafeGetStorageImpl());
  return set;
}

}  // namespace

void install_listing_engine() { torch::autograd::set_default_engine_stub(&listing_engine); }

SavedTensors::SavedTensors() {
  TORCH_CHECK(listing == nullptr, "one list at a time");
  listing = this;
}
SavedTensors::~SavedTensors() { listing = nullptr; }

void SavedTensors::add(const at::Tensor& tensor) {
  SavedTensor saved;
  saved.storage = tensor.storage().unsafeGetStorageImpl();
  saved.storage_bytes = static_cast<int64_t>(tensor.storage().nbytes());
  saved.producer = tensor.grad_fn() ? tensor.grad_fn()->name() : tensor.requires_grad() ? "leaf" : "constant";
  std::ostringstream shape;
  shape << c10::toString(tensor.scalar_type()) << tensor.sizes();
  saved.shape = shape.str();
  list_.push_back(std::move(saved));
}

int64_t SavedTensors::bytes_besides(const std::vector<at::Tensor>& existing) const {
  std::set<const void*> seen = storages_of(existing);
  int64_t bytes = 0;
  for (const SavedTensor& saved : list_)
    if (seen.insert(saved.storage).second) bytes += saved.storage_bytes;
  return bytes;
}

int64_t SavedTensors::bytes_among(const std::vector<at::Tensor>& existing) const {
  std::set<const void*> wanted = storages_of(existing);
  int64_t bytes = 0;
  for (const SavedTensor& saved : list_)
    if (wanted.erase(saved.storage) > 0) bytes += saved.storage_bytes;
  return bytes;
}

}  // namespace trainer::test
