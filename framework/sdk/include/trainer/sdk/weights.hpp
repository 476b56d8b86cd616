/// @file Named tensors in files, read one at a time. Implemented by the host (framework/weights); a model plugin may
/// wrap a source to present another file layout under its own names.
#pragma once

#include <trainer/sdk/key_contract.hpp>
#include <trainer/sdk/tensor.hpp>

#include <memory>
#include <string_view>

namespace trainer {

struct TensorInfo {
  std::string name;
  at::ScalarType dtype = at::kFloat;  ///< as stored
  std::vector<int64_t> shape;
};

class TRAINER_API WeightSource {
 public:
  virtual ~WeightSource();
  /// All names, sorted.
  [[nodiscard]] virtual std::vector<std::string> names() const = 0;
  /// Header information, or nullptr. Valid as long as the source.
  [[nodiscard]] virtual const TensorInfo* find(std::string_view name) const = 0;
  /// The whole tensor: CPU, stored dtype, contiguous. It may be a read-only view of a mapped file: never written to.
  /// Throws Error (bad_input) when the file is damaged or has no such tensor.
  [[nodiscard]] virtual at::Tensor read(std::string_view name) = 0;
  /// Rows [begin, end) of dimension 0, without touching the rest of the file where possible.
  [[nodiscard]] virtual at::Tensor read_rows(std::string_view name, int64_t begin, int64_t end);
  /// File or folder, for messages.
  [[nodiscard]] virtual std::string describe() const = 0;
  /// Identity of the content for cache keys (a hash of headers, sizes and bytes), the same for every copy.
  [[nodiscard]] virtual std::string identity() const = 0;
};

/// What a source holds, for check_key_contract; dtypes as LibTorch calls them, e.g. "BFloat16".
TRAINER_API std::vector<NamedShape> named_shapes(const WeightSource& source);

}  // namespace trainer
