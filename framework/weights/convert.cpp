#include <weights/convert.hpp>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/view_as_real.h>
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

}  // namespace trainer::weights
