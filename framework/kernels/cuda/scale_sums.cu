// Sums of 8-bit products scaled, and 8-bit weights expanded: an element at a time, in packs where memory allows it.
#include <kernels/cuda/launches.hpp>
#include <kernels/cuda/vectors.cuh>

namespace trainer::kernels {
namespace {

constexpr int kSums = 4, kCodes = 16;  ///< in a pack

template <int kEach, typename From, typename To>
__global__ void scale_sums(const ScaleSums a) {
  for_elements<kEach>(a.rows, a.width, [&](int64_t row, int64_t column, auto count) {
    constexpr int kCount = decltype(count)::value;
    const int64_t at = row * a.width + column;
    const Pack<From, kCount> sums = read_pack<From, kCount>(static_cast<const From*>(a.sums) + at);
    const float scale = a.row_scale[row];
    Pack<float, kCount> scales;
    for (int k = 0; k < kCount; ++k) scales.at[k] = 1;
    if (a.column_scale != nullptr) scales = read_pack<float, kCount>(a.column_scale + column);
    Pack<To, kCount> y;
    for (int k = 0; k < kCount; ++k) round_to(to_float(sums.at[k]) * scale * scales.at[k], &y.at[k]);
    write_pack<To, kCount>(static_cast<To*>(a.y) + at, y);
  });
}

template <typename From, typename To>
void start(const ScaleSums& a, Stream stream) {
  const bool packs = takes_packs(a.sums, a.rows, a.width, sizeof(From), kSums) &&
                     takes_packs(a.y, a.rows, a.width, sizeof(To), kSums) &&
                     takes_packs(a.column_scale, 1, 0, sizeof(float), kSums);
  if (packs)
    run(scale_sums<kSums, From, To>, grid_for<kSums>(a.rows, a.width), stream, a);
  else
    run(scale_sums<1, From, To>, grid_for<1>(a.rows, a.width), stream, a);
}

template <int kEach, typename From, typename To>
__global__ void expand(const ExpandCodes a) {
  for_elements<kEach>(a.rows, a.width, [&](int64_t row, int64_t column, auto count) {
    constexpr int kCount = decltype(count)::value;
    const int64_t at = row * a.width + column;
    const Pack<From, kCount> codes = read_pack<From, kCount>(static_cast<const From*>(a.values) + at);
    const float* scale = a.scale + row * a.scale_step;
    const int64_t block = column / a.block;
    const bool shared = column + kCount <= (block + 1) * a.block;
    const float first = scale[block];
    Pack<To, kCount> y;
    for (int k = 0; k < kCount; ++k)
      round_to(to_float(codes.at[k]) * (shared ? first : scale[(column + k) / a.block]), &y.at[k]);
    write_pack<To, kCount>(static_cast<To*>(a.y) + at, y);
  });
}

template <typename From, typename To>
void start(const ExpandCodes& a, Stream stream) {
  const bool packs = takes_packs(a.values, a.rows, a.width, sizeof(From), kCodes) &&
                     takes_packs(a.y, a.rows, a.width, sizeof(To), kCodes);
  if (packs)
    run(expand<kCodes, From, To>, grid_for<kCodes>(a.rows, a.width), stream, a);
  else
    run(expand<1, From, To>, grid_for<1>(a.rows, a.width), stream, a);
}

}  // namespace

int cuda_scale_sums(const ScaleSums* a, Stream stream) {
  if (a->rows <= 0 || a->width <= 0) return 0;
  return error_of_launch(with_floating(a->to,
                                       [&](auto to) {
                                         if (a->from == Number::f32) start<float, decltype(to)>(*a, stream);
                                         if (a->from == Number::int32) start<int32_t, decltype(to)>(*a, stream);
                                       }) &&
                         (a->from == Number::f32 || a->from == Number::int32));
}

int cuda_expand_codes(const ExpandCodes* a, Stream stream) {
  if (a->rows <= 0 || a->width <= 0) return 0;
  bool launched = false;
  with_floating(a->to, [&](auto to) {
    launched = with_code(a->from, [&](auto from) { start<decltype(from), decltype(to)>(*a, stream); });
  });
  return error_of_launch(launched);
}

}  // namespace trainer::kernels
