#include <c10/core/ScalarType.h>
#include <trainer/sdk/weights.hpp>

namespace trainer {

std::vector<NamedShape> named_shapes(const WeightSource& source) {
  std::vector<NamedShape> shapes;
  for (const std::string& name : source.names()) {
    const TensorInfo& info = *source.find(name);
    shapes.push_back({name, info.shape, c10::toString(info.dtype)});
  }
  return shapes;
}

}  // namespace trainer
