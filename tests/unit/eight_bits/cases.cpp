#include "cases.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <trainer/sdk/ops/eight_bits.hpp>

#include <array>
#include <limits>
#include <utility>

namespace trainer::test {
namespace {

using at::Tensor;

struct Shape {
  int64_t rows, width;
};
constexpr Shape kShapes[] = {{0, 64},   {1, 1},  {3, 7},    {2, 71},   {5, 64},
                             {17, 130}, {33, 0}, {65, 256}, {4, 3001}, {130, 192}};
constexpr std::array kFloating{at::kFloat, at::kBFloat16, at::kHalf};

/// Numbers of many sizes; of more than four rows, one is zeros, one has NaN, one infinity.
Tensor numbers(Shape shape, double seed = 1) {
  Tensor x =
      at::sin(at::arange(shape.rows * shape.width, at::kDouble) * (12.9898 + seed)).view({shape.rows, shape.width});
  x = (x * at::exp2(at::arange(shape.rows, at::kDouble).remainder(50) - 30).unsqueeze(1)).to(at::kFloat);
  if (shape.rows > 4 && shape.width > 0) {
    x[1].zero_();
    x[2][shape.width / 2] = std::numeric_limits<float>::quiet_NaN();
    x[3][shape.width / 3] = -std::numeric_limits<float>::infinity();
    x[4].fill_(std::numeric_limits<float>::denorm_min());
  }
  return x;
}

/// The same numbers in rows that begin anywhere.
Tensor sliced(const Tensor& x) {
  Tensor wider = at::zeros({x.size(0), x.size(1) + 3}, x.options());
  wider.narrow(1, 1, x.size(1)).copy_(x);
  return wider.narrow(1, 1, x.size(1));
}

std::vector<Tensor> quantized(const Tensor& given, const Tensor& factors, at::ScalarType code) {
  const bool whole = code == at::kChar;
  const float largest = whole ? 127 : 448;
  Tensor x = given.to(at::kFloat);
  if (factors.defined()) x = x * factors;
  const Tensor amax = x.size(1) == 0 ? at::zeros({x.size(0), 1}) : at::amax(x.abs(), {1}, true);
  const Tensor scale = at::where(amax == 0, at::full_like(amax, 1), (amax / largest).clamp_min(0x1p-126F));
  const Tensor divided = x / scale;
  if (whole) return {divided.nan_to_num(0).round().clamp(-127, 127).to(at::kChar), scale};
  return {divided.clamp(-448, 448).to(at::kFloat8_e4m3fn), scale};
}

template <typename Make>
EightBitsCase case_of(std::string name, const Make& make) {
  return {std::move(name), [=](at::Device device) { return make(device, true); },
          [=] { return make(at::Device(at::kCPU), false); }};
}

/// make(device, whether by our passes) -> results.
EightBitsCase quantize_case(Shape shape, at::ScalarType dtype) {
  return case_of("Quantize", [=](at::Device device, bool ours) {
    std::vector<Tensor> all;
    const Tensor dense = numbers(shape).to(dtype), factors = at::arange(shape.width, at::kFloat) / 64 - 0.4;
    for (const at::ScalarType code : {at::kFloat8_e4m3fn, at::kChar})
      for (const bool with_factors : {false, true})
        for (const bool anywhere : {false, true}) {
          const Tensor by = with_factors ? factors : Tensor();
          if (!ours) {
            for (const Tensor& one : quantized(dense, by, code)) all.push_back(one);
            continue;
          }
          const Tensor there = dense.to(device);
          const auto [values, scale] =
              eight_bits::quantize_rows(anywhere ? sliced(there) : there, with_factors ? by.to(device) : by, code);
          all.insert(all.end(), {values, scale});
        }
    return all;
  });
}

EightBitsCase scale_case(Shape shape, at::ScalarType dtype) {
  return case_of("Scale", [=](at::Device device, bool ours) {
    std::vector<Tensor> all;
    const Tensor rows = at::arange(shape.rows, at::kFloat).unsqueeze(1) / 7 - 0.6,
                 columns = at::arange(shape.width, at::kFloat) / 64 - 0.4, wide = numbers(shape, 2);
    const Tensor whole = (wide.nan_to_num(0).clamp(-1e3, 1e3) * 2e6).to(at::kInt);
    for (const Tensor& sums : {wide, whole})
      for (const bool with_columns : {false, true}) {
        if (ours) {
          all.push_back(eight_bits::scale_sums(sums.to(device), rows.to(device),
                                               with_columns ? columns.to(device) : Tensor(), dtype));
          continue;
        }
        const Tensor once = sums.to(at::kFloat) * rows;
        all.push_back((with_columns ? once * columns : once).to(dtype));
      }
    return all;
  });
}

EightBitsCase expand_case(Shape shape, at::ScalarType dtype) {
  return case_of("Expand", [=](at::Device device, bool ours) {
    std::vector<Tensor> all;
    const Tensor bytes = at::arange(shape.rows * shape.width, at::kInt).mul_(37).bitwise_and_(255).to(at::kByte);
    for (const at::ScalarType code : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kChar})
      for (const int64_t block : {std::max<int64_t>(shape.width, 1), int64_t{64}, int64_t{5}})
        for (const int64_t scale_rows : {int64_t{1}, shape.rows}) {
          const Tensor values = bytes.view(code).view({shape.rows, shape.width});
          const Tensor scale = numbers({scale_rows, (shape.width + block - 1) / block}, 3);
          if (ours) {
            all.push_back(eight_bits::expand(values.to(device), scale.to(device), block, dtype));
            continue;
          }
          const Tensor each = scale.repeat_interleave(block, 1).narrow(1, 0, shape.width);
          all.push_back((values.to(at::kFloat) * each).to(dtype));
        }
    return all;
  });
}

EightBitsCase transpose_case(Shape shape) {
  return case_of("Transpose", [=](at::Device device, bool ours) {
    const Tensor bytes = at::arange(shape.rows * shape.width, at::kInt).mul_(37).bitwise_and_(255).to(at::kByte);
    const Tensor x = bytes.view(at::kChar).view({shape.rows, shape.width});
    return std::vector<Tensor>{ours ? eight_bits::transposed(x.to(device)) : x.t().contiguous()};
  });
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const EightBitsCase& one) { return out << one.name; }

std::vector<EightBitsCase> eight_bits_cases() {
  std::vector<EightBitsCase> all;
  for (const Shape shape : kShapes) {
    const std::string size = std::to_string(shape.rows) + "x" + std::to_string(shape.width);
    for (const at::ScalarType dtype : kFloating)
      for (EightBitsCase one : {quantize_case(shape, dtype), scale_case(shape, dtype), expand_case(shape, dtype)}) {
        one.name += size + c10::toString(dtype);
        all.push_back(std::move(one));
      }
    all.push_back(transpose_case(shape));
    all.back().name += size;
  }
  return all;
}

bool same_numbers(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const Tensor x = a.cpu().to(at::kFloat), y = b.cpu().to(at::kFloat);
  return ((x == y) | ((x != x) & (y != y))).all().item<bool>();
}

}  // namespace trainer::test
