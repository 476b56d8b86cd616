/// @file See operations.hpp.
#include "operations.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace trainer::test {
namespace {

at::Tensor normal(uint64_t seed, at::IntArrayRef shape, at::ScalarType dtype) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::kDouble).to(dtype);
}

Operation norm(int64_t batch, int64_t tokens, int64_t width, int64_t modulations) {
  return {
      "modulated_norm_" + std::to_string(tokens) + "_" + std::to_string(width) + "_b" + std::to_string(batch) + "_m" +
          std::to_string(modulations),
      {{batch, tokens, width}, {modulations, 1, width}, {modulations, 1, width}},
      [](const std::vector<at::Tensor>& in, bool fused) { return modulated_norm(in[0], in[1], in[2], 1e-6, fused); }};
}

Operation rope(int64_t batch, int64_t first, int64_t second, int64_t heads, int64_t width, int64_t tables) {
  return {"norm_rope_" + std::to_string(width) + "_b" + std::to_string(batch) + "_s" + std::to_string(first) + "_" +
              std::to_string(second) + "_t" + std::to_string(tables),
          {{batch, first, heads, width}, {batch, second, heads, width}, {width}, {width}},
          [=](const std::vector<at::Tensor>& in, bool fused) {
            const at::Tensor angles = normal(7, {tables, first + second, width / 2}, at::kFloat).to(in[0].device());
            return norm_rope({in[0], in[1]}, {in[2], in[3]}, at::stack({at::cos(angles), at::sin(angles)}, -1), 1e-6,
                             fused);
          }};
}

Operation gate(int64_t rows, int64_t width, int64_t before) {
  Operation operation{"swiglu_" + std::to_string(width) + "_r" + std::to_string(rows) + "_n" + std::to_string(before),
                      {{2, rows, 2 * width}},
                      [](const std::vector<at::Tensor>& in, bool fused) {
                        return swiglu(in[0], in.size() > 1 ? in[1] : at::Tensor(), fused);
                      }};
  if (before > 0) operation.shapes.push_back({2, rows, before});
  return operation;
}

Operation residual(int64_t batch, int64_t tokens, int64_t width, int64_t gates) {
  return {"gated_residual_" + std::to_string(tokens) + "_" + std::to_string(width) + "_b" + std::to_string(batch) +
              "_g" + std::to_string(gates),
          {{batch, tokens, width}, {gates, 1, width}, {batch, tokens, width}},
          [](const std::vector<at::Tensor>& in, bool fused) { return gated_residual(in[0], in[1], in[2], fused); }};
}

/// The adapter is fp32 beside bf16 data.
Operation low_rank(int64_t rows, int64_t in, int64_t out, int64_t rank) {
  return {"low_rank_" + std::to_string(in) + "_" + std::to_string(out) + "_r" + std::to_string(rank) + "_m" +
              std::to_string(rows),
          {{rows, in}, {rows, out}, {rank, in}, {out, rank}},
          [](const std::vector<at::Tensor>& x, bool fused) {
            const at::ScalarType adapter = x[0].scalar_type() == at::kBFloat16 ? at::kFloat : x[0].scalar_type();
            return low_rank_sum(x[0], x[1], x[2].to(adapter), x[3].to(adapter), 0.7, fused);
          }};
}

/// Products that depend neither on threads nor on strides, as LibTorch's do.
class SummedWeight final : public FrozenWeight {
 public:
  explicit SummedWeight(at::Tensor weight) : weight_(std::move(weight)) {}
  [[nodiscard]] at::Tensor matmul(const at::Tensor& x) const override { return product(x, weight_); }
  [[nodiscard]] at::Tensor grad_input(const at::Tensor& g) const override { return product(g, weight_.t()); }
  [[nodiscard]] at::Tensor dense(at::ScalarType dtype) const override { return weight_.to(dtype); }
  [[nodiscard]] int64_t bytes() const override { return static_cast<int64_t>(weight_.nbytes()); }
  void to(at::Device device) override { weight_ = weight_.to(device); }
  [[nodiscard]] std::vector<at::Tensor*> tensors() override { return {&weight_}; }

 private:
  static at::Tensor product(const at::Tensor& x, const at::Tensor& weight) {
    return (x.contiguous().unsqueeze(1) * weight.contiguous()).sum(-1);
  }
  at::Tensor weight_;
};

/// The same with the layer in one node; its frozen weight is no input.
Operation low_rank_layer(int64_t rows, int64_t in, int64_t out, int64_t rank) {
  return {"low_rank_linear_" + std::to_string(in) + "_" + std::to_string(out) + "_r" + std::to_string(rank) + "_m" +
              std::to_string(rows),
          {{rows, in}, {rank, in}, {out, rank}},
          [=](const std::vector<at::Tensor>& x, bool fused) {
            const at::ScalarType adapter = x[0].scalar_type() == at::kBFloat16 ? at::kFloat : x[0].scalar_type();
            const auto weight = std::make_shared<SummedWeight>(
                normal(11, {out, in}, x[0].scalar_type()).to(x[0].device()) / std::sqrt(static_cast<double>(in)));
            return low_rank_linear(x[0], weight, x[1].to(adapter), x[2].to(adapter), 0.7, fused);
          }};
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Operation& operation) { return out << operation.name; }

std::vector<Operation> operations() {
  return {norm(2, 5, 32, 2),
          norm(3, 130, 67, 3),
          norm(2, 5, 7, 1),
          norm(1, 3, 3, 1),
          norm(0, 5, 32, 1),
          norm(2, 0, 32, 2),
          norm(2, 70, 1100, 2),
          rope(2, 3, 5, 4, 16, 1),
          rope(1, 70, 6, 3, 64, 1),
          rope(2, 4, 1, 1, 6, 2),
          rope(3, 2, 5, 2, 22, 3),
          rope(0, 2, 3, 2, 16, 1),
          gate(6, 32, 0),
          gate(5, 19, 0),
          gate(3, 1, 0),
          gate(6, 16, 32),
          gate(7, 33, 5),
          gate(0, 16, 8),
          residual(2, 5, 32, 2),
          residual(3, 130, 67, 3),
          residual(2, 5, 7, 1),
          residual(1, 1, 1, 1),
          residual(0, 5, 32, 1),
          residual(2, 0, 32, 2),
          residual(2, 70, 1100, 2),
          low_rank(9, 32, 64, 16),
          low_rank(45, 67, 5, 3),
          low_rank(2, 1, 1, 1),
          low_rank(8, 2100, 33, 8),
          low_rank(70, 16, 1030, 4),
          low_rank(0, 16, 8, 2),
          low_rank_layer(9, 32, 64, 16),
          low_rank_layer(45, 67, 5, 3),
          low_rank_layer(1, 1, 1, 1),
          low_rank_layer(8, 210, 33, 8),
          low_rank_layer(0, 16, 8, 2)};
}

std::vector<at::Tensor> inputs_of(const Operation& operation, at::ScalarType dtype) {
  std::vector<at::Tensor> inputs;
  for (const auto& shape : operation.shapes)
    inputs.push_back(normal(inputs.size() + 1, shape, dtype).requires_grad_(true));
  return inputs;
}

std::vector<at::Tensor> forward_and_backward(const Operation& operation, const std::vector<at::Tensor>& inputs,
                                             bool fused) {
  const at::Tensor y = operation.run(inputs, fused);
  const at::Tensor direction = normal(99, y.sizes(), y.scalar_type()).to(y.device());
  std::vector<at::Tensor> results = torch::autograd::grad({y}, inputs, {direction});
  results.insert(results.begin(), y.detach());
  return results;
}

double error(const at::Tensor& value, const at::Tensor& expected) {
  if (value.sizes() != expected.sizes()) return 1e30;
  if (value.numel() == 0) return 0;
  const at::Tensor wide = expected.to(at::kDouble);
  return (value.to(at::kDouble) - wide).abs().max().item<double>() / (wide.abs().max().item<double>() + 1e-300);
}

}  // namespace trainer::test
