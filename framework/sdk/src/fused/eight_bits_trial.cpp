/// @file Tries the CUDA kernels for 8-bit numbers against the CPU's loops, see cuda.hpp: the same bits are wanted, from
/// rows that packs fit and rows that they do not, with zeros, NaN and infinity among them.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <c10/util/Exception.h>
#include <trainer/sdk/ops/eight_bits.hpp>

#include <limits>

#include "cuda.hpp"
#include "trial_once.hpp"

namespace trainer::fused {
namespace {

using at::Tensor;

/// Numbers of many sizes in no order; the first rows hold what is special.
Tensor numbers(int64_t rows, int64_t width) {
  Tensor x = at::sin(at::arange(rows * width, at::kDouble) * 12.9898).reshape({rows, width});
  x = (x * at::exp2(at::arange(rows, at::kDouble) * 3 - 40).unsqueeze(1)).to(at::kFloat);
  x[0].zero_();
  x[1][width / 2] = std::numeric_limits<float>::quiet_NaN();
  x[2][width / 3] = std::numeric_limits<float>::infinity();
  return x;
}

/// Every code once or more, as a matrix.
Tensor codes(int64_t rows, int64_t width, at::ScalarType dtype) {
  return at::arange(rows * width, at::kInt).mul_(37).bitwise_and_(255).to(at::kByte).view(dtype).view({rows, width});
}

/// What every kernel makes of them on the device.
std::vector<Tensor> results(at::Device device) {
  const auto there = [&](const Tensor& tensor) { return tensor.to(device); };
  std::vector<Tensor> all;
  for (const int64_t width : {64, 71, 3000}) {
    const Tensor wide = numbers(13, width), scales = at::arange(width, at::kFloat) / 64 + 0.3,
                 rows = at::arange(13, at::kFloat).unsqueeze(1) / 7 - 0.6;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Tensor x = there(wide.to(dtype));
      for (const at::ScalarType code : {at::kFloat8_e4m3fn, at::kChar})
        for (const Tensor& factors : {Tensor(), there(scales)}) {
          const auto [values, scale] = eight_bits::quantize_rows(x, factors, code);
          all.insert(all.end(), {values, scale});
        }
      const Tensor sums = there((wide.nan_to_num(1) * 1e3).clamp(-1e9, 1e9));
      all.push_back(eight_bits::scale_sums(sums, there(rows), there(scales), dtype));
      all.push_back(eight_bits::scale_sums(sums.to(at::kInt), there(rows), {}, dtype));
      for (const at::ScalarType code : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kChar})
        for (const int64_t block : {width, int64_t{24}})
          all.push_back(eight_bits::expand(there(codes(13, width, code)),
                                           there(wide.narrow(1, 0, (width + block - 1) / block).contiguous()), block,
                                           dtype));
    }
    for (const int64_t rows_of_bytes : {13, 128})
      all.push_back(eight_bits::transposed(there(codes(rows_of_bytes, width, at::kChar))));
  }
  return all;
}

bool same(const Tensor& got, const Tensor& expected) {
  const Tensor a = got.to(at::kCPU).to(at::kFloat), b = expected.to(at::kFloat);
  return ((a == b) | ((a != a) & (b != b))).all().item<bool>();
}

bool try_on(at::Device device) {
  if (cuda_kernels() == nullptr) return false;
  const at::AutoDispatchBelowADInplaceOrView below;
  try {
    const std::vector<Tensor> expected = results(at::kCPU), got = results(device);
    for (std::size_t i = 0; i < got.size(); ++i)
      if (!same(got[i], expected[i])) throw std::runtime_error("result " + std::to_string(i) + " differs");
  } catch (const std::exception& error) {
    TORCH_WARN("the CUDA kernels for 8-bit numbers do not compute on ", device,
               " what the CPU does, LibTorch's operators are used instead: ", error.what());
    return false;
  }
  return true;
}

}  // namespace

bool eight_bits_are_trusted(at::Device device) {
  static TrialOnce trial(try_on);
  return trial.passed(device);
}

}  // namespace trainer::fused
