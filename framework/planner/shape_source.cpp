#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <planner/byte_counter.hpp>
#include <planner/shape_kernels.hpp>
#include <planner/shape_source.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

#include <utility>
#include <weights/tensor_file.hpp>

namespace trainer::planner {
namespace {

class ShapeSource final : public WeightSource {
 public:
  ShapeSource(std::shared_ptr<WeightSource> file, at::Device host) : file_(std::move(file)), host_(host) {}
  [[nodiscard]] std::vector<std::string> names() const override { return file_->names(); }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override { return file_->find(name); }
  [[nodiscard]] at::Tensor read(std::string_view name) override {
    const TensorInfo* info = find(name);
    if (info == nullptr)
      throw Error(ExitCode::bad_input, describe() + ": tensor " + quote_name(name) + " is missing", "MODEL_KEYS");
    const auto options = at::TensorOptions().dtype(info->dtype).device(host_);
    const int64_t bytes = c10::multiply_integers(info->shape) * static_cast<int64_t>(c10::elementSize(info->dtype));
    if (bytes < static_cast<int64_t>(weights::kMapFrom)) return at::empty(info->shape, options);
    const Uncounted mapped;
    return at::empty(info->shape, options);
  }
  [[nodiscard]] std::string describe() const override { return file_->describe(); }
  [[nodiscard]] std::string identity() const override { return file_->identity(); }

 private:
  std::shared_ptr<WeightSource> file_;
  at::Device host_;
};

}  // namespace

std::shared_ptr<WeightSource> shapes_of(std::shared_ptr<WeightSource> file, at::Device host) {
  install_byte_counter();
  install_shape_kernels();  // a weight format may compute on what it reads
  return std::make_shared<ShapeSource>(std::move(file), host);
}

}  // namespace trainer::planner
