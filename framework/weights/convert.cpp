#include <weights/convert.hpp>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/view_as_real.h>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>
#include <trainer/sdk/weights.hpp>
#include <weights/safetensors_header.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace trainer::weights {
namespace {

constexpr std::pair<Dtype, at::ScalarType> kTypes[] = {
    {Dtype::boolean, at::ScalarType::Bool},
    {Dtype::u8, at::ScalarType::Byte},
    {Dtype::i8, at::ScalarType::Char},
    {Dtype::f8_e5m2, at::ScalarType::Float8_e5m2},
    {Dtype::f8_e4m3, at::ScalarType::Float8_e4m3fn},
    {Dtype::f8_e8m0, at::ScalarType::Float8_e8m0fnu},
    {Dtype::f8_e4m3fnuz, at::ScalarType::Float8_e4m3fnuz},
    {Dtype::f8_e5m2fnuz, at::ScalarType::Float8_e5m2fnuz},
    {Dtype::i16, at::ScalarType::Short},
    {Dtype::u16, at::ScalarType::UInt16},
    {Dtype::f16, at::ScalarType::Half},
    {Dtype::bf16, at::ScalarType::BFloat16},
    {Dtype::i32, at::ScalarType::Int},
    {Dtype::u32, at::ScalarType::UInt32},
    {Dtype::f32, at::ScalarType::Float},
    {Dtype::c64, at::ScalarType::ComplexFloat},
    {Dtype::f64, at::ScalarType::Double},
    {Dtype::i64, at::ScalarType::Long},
    {Dtype::u64, at::ScalarType::UInt64},
};

/// Largest finite value of a float8 type that `convert_dtype` saturates to; 0 for other types.
double float8_limit(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Float8_e4m3fn:
      return 448.0;
    case at::ScalarType::Float8_e5m2:
    case at::ScalarType::Float8_e5m2fnuz:
      return 57344.0;
    case at::ScalarType::Float8_e4m3fnuz:
      return 240.0;
    default:
      return 0.0;
  }
}

bool finite_piece(const at::Tensor& piece) {
  // The extremes carry NaN, so two numbers tell about all of them.
  const auto [low, high] = at::aminmax(piece);
  return std::isfinite(low.item<double>()) && std::isfinite(high.item<double>());
}

}  // namespace

std::optional<at::ScalarType> scalar_type(Dtype dtype) {
  for (const auto& [file, type] : kTypes) {
    if (file == dtype) return type;
  }
  return std::nullopt;
}

std::optional<Dtype> file_dtype(at::ScalarType type) {
  for (const auto& [file, known] : kTypes) {
    if (known == type) return file;
  }
  return std::nullopt;
}

at::Tensor convert_dtype(const at::Tensor& tensor, at::ScalarType type) {
  if (tensor.scalar_type() == type) return tensor;
  const double limit = float8_limit(type);
  if (limit == 0.0) return tensor.to(type);
  // Between two float8 types there is no clamp kernel; bf16 and fp32 hold each of their values.
  const at::Tensor wide = at::isFloat8Type(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
  return at::clamp(wide, -limit, limit).to(type);
}

bool all_finite(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  if (tensor.numel() == 0 || at::isIntegralType(type, /*includeBool=*/true)) return true;
  if (at::isComplexType(type)) return all_finite(at::view_as_real(tensor));
  if (!at::isFloat8Type(type)) return finite_piece(tensor);
  constexpr int64_t kPiece = int64_t{1} << 22;
  const at::Tensor flat = tensor.reshape({-1});
  for (int64_t at = 0; at < flat.numel(); at += kPiece) {
    if (!finite_piece(flat.narrow(0, at, std::min(kPiece, flat.numel() - at)).to(at::kFloat))) return false;
  }
  return true;
}

void check_finite(WeightSource& source) {
  std::string bad;
  std::size_t count = 0;
  for (const std::string& name : source.names()) {
    if (all_finite(source.read(name))) continue;
    if (++count <= 5) bad += (bad.empty() ? "" : ", ") + quote_name(name);
  }
  if (count == 0) return;
  throw Error(ExitCode::bad_input,
              source.describe() + ": " + std::to_string(count) + " tensors hold NaN or infinity: " + bad +
                  (count > 5 ? ", ..." : "") +
                  "; the run that made this file had diverged: take an "
                  "earlier checkpoint",
              "LORA_NONFINITE");
}

}  // namespace trainer::weights
