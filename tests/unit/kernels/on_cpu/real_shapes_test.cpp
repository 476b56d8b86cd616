/// @file The CUDA kernels, run on the CPU, at the sizes of FLUX.2-dev: 1,536 and 4,608 tokens of width 6,144 (minutes).
#include "checks.hpp"
#include "eight_bits_checks.hpp"

namespace trainer::kernels::test {
namespace {

constexpr int64_t kWidth = 6144, kMlp = 18432;

class RealShapes : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { go_one_way(); }
};
INSTANTIATE_TEST_SUITE_P(Tokens, RealShapes, ::testing::Values(1536, 4608), ::testing::PrintToStringParamName());

TEST_P(RealShapes, ModulatedNorm) { check_modulated_norm<Bfloat16>({1, GetParam(), kWidth, kWidth}); }
TEST_P(RealShapes, NormRope) { check_norm_rope<Bfloat16>({1, GetParam(), kWidth / 128, 128}); }
TEST_P(RealShapes, SwiGlu) { check_swiglu<Bfloat16>({GetParam(), kMlp, kWidth}); }
TEST_P(RealShapes, GatedResidual) { check_gated_residual<Bfloat16>({1, GetParam(), kWidth, kWidth}); }

TEST_P(RealShapes, EightBits) {
  const ByteShape s{GetParam(), kWidth};
  {
    Buffer<Bfloat16> x(Role::input, s.rows * s.width);
    x.random(1, 3);
    check_quantize_rows<Bfloat16, E4m3>(x, s, s.width, nullptr);
    check_quantize_rows<Bfloat16, int8_t>(x, s, s.width, nullptr);
  }
  check_scale_sums<int32_t, Bfloat16>(s, true);
  Buffer<E4m3> codes(Role::input, s.rows * s.width);
  Buffer<float> scale(Role::input, s.rows);
  codes.random(1), scale.random(2);
  check_expand_codes<E4m3, Bfloat16>(codes, scale, s, s.width, false);
  check_transpose_bytes(s);
}

}  // namespace
}  // namespace trainer::kernels::test
