#include <ATen/ops/from_blob.h>
#include <planner/uncounted_copy.hpp>

#include <memory>
#include <vector>

namespace trainer::planner {

at::Tensor uncounted_copy(const at::Tensor& tensor) {
  auto memory = std::make_shared<std::vector<char>>(tensor.nbytes());
  const at::Tensor copy = at::from_blob(
      memory->data(), tensor.sizes(), [memory](void*) {}, tensor.options().device(at::kCPU).requires_grad(false));
  copy.copy_(tensor.detach());
  return copy;
}

}  // namespace trainer::planner
