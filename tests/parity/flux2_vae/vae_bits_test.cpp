// The encoder's own CPU kernels: the value of GroupNorm and SiLU, and bits that neither threads nor company change.
#include "vae_fixture.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <support/variable.hpp>

#include <cstdlib>

namespace trainer::test {
namespace {

using flux2_vae::Then;

/// LibTorch's threads as they were, when the test ends.
class Threads {
 public:
  Threads() : before_(at::get_num_threads()) {}
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

struct Case {
  at::Tensor x, weight, bias;
  int64_t groups;

  Case(std::vector<int64_t> shape, int64_t group_count, double mean, uint64_t salt) : groups(group_count) {
    const auto normal = [&](std::vector<int64_t> of, double stretch) {
      at::Tensor t = at::ones(of);
      float* values = t.mutable_data_ptr<float>();
      for (int64_t i = 0; i < t.numel(); ++i) {
        salt = salt * 6364136223846793005ULL + 1442695040888963407ULL;
        values[i] = static_cast<float>(stretch * (static_cast<double>(salt >> 33) / (1LL << 30) - 1));
      }
      return t;
    };
    x = (normal(shape, 3) + mean).contiguous(at::MemoryFormat::ChannelsLast);
    weight = normal({shape[1]}, 2);
    bias = normal({shape[1]}, 1);
  }
  [[nodiscard]] at::Tensor ours(at::ScalarType dtype, Then then) const {
    return flux2_vae::group_norm(x.to(dtype), groups, weight.to(dtype), bias.to(dtype), 1e-6, then);
  }
  [[nodiscard]] at::Tensor exact(at::ScalarType dtype, Then then) const {
    const auto wide = [&](const at::Tensor& t) { return t.to(dtype).to(at::kDouble).contiguous(); };
    const at::Tensor y = at::group_norm(wide(x), groups, wide(weight), wide(bias), 1e-6);
    return then == Then::silu ? at::silu(y) : y;
  }
};

const std::vector<Case>& cases() {
  // Whole chunks of pixels, a last one of one pixel, fewer channels than a vector holds, a mean of 100 deviations.
  static const std::vector<Case> all = {Case({2, 64, 64, 64}, 32, 0, 1), Case({1, 24, 19, 27}, 3, 0.5, 2),
                                        Case({3, 3, 7, 5}, 1, -2, 3), Case({1, 32, 40, 40}, 4, 200, 4)};
  return all;
}

TEST(VaeGroupNorm, HasTheValueOfFloat64) {
  for (const Case& c : cases()) {
    for (const Then then : {Then::nothing, Then::silu}) {
      const at::Tensor y = c.ours(at::kFloat, then);
      EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
      EXPECT_EQ(y.scalar_type(), at::kFloat);
      EXPECT_LE(max_error(y, c.exact(at::kFloat, then)), 1e-5) << c.x.sizes();
      const at::Tensor half = c.ours(at::kBFloat16, then);
      EXPECT_EQ(half.scalar_type(), at::kBFloat16);
      EXPECT_LE(max_error(half, c.exact(at::kBFloat16, then)), 1.0 / 256) << c.x.sizes();
    }
  }
}

TEST(VaeGroupNorm, SiluHoldsFarFromZero) {
  Case c({1, 4, 16, 16}, 1, 0, 5);
  c.weight = c.weight * 0 + 200;
  const at::Tensor y = c.ours(at::kFloat, Then::silu);
  EXPECT_LE(max_error(y, c.exact(at::kFloat, Then::silu)), 1e-5);
  EXPECT_TRUE(y.isfinite().all().item<bool>());
  c.x[0][1][3][4] = std::nan("");
  EXPECT_TRUE(c.ours(at::kFloat, Then::silu).isnan().all().item<bool>());
  EXPECT_TRUE(c.ours(at::kBFloat16, Then::silu).isnan().all().item<bool>());
}

TEST(VaeGroupNorm, BitsDependOnNeitherThreadsNorCompany) {
  const Threads restored;
  for (const Case& c : cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      at::set_num_threads(1);
      const at::Tensor one = c.ours(dtype, Then::silu);
      for (const int threads : {2, 3}) {
        at::set_num_threads(threads);
        EXPECT_TRUE(same_bits(c.ours(dtype, Then::silu), one)) << c.x.sizes() << " " << threads;
        for (int64_t i = 0; i < c.x.size(0); ++i) {
          Case alone = c;
          alone.x = c.x.narrow(0, i, 1);
          EXPECT_TRUE(same_bits(alone.ours(dtype, Then::silu), one.narrow(0, i, 1))) << c.x.sizes() << " " << i;
        }
      }
    }
  }
}

class VaeBits : public testing::TestWithParam<std::filesystem::path> {
 protected:
  /// [2, 3, 160, 224]: the finest maps have well over 64 x 64 pixels, and no power of two of them.
  at::Tensor pictures() const {
    const at::Tensor image = dir_.data.at("image");
    const at::Tensor wide = at::cat(std::vector<at::Tensor>(224 / image.size(3) + 1, image), 3).narrow(3, 0, 224);
    const at::Tensor high = at::cat(std::vector<at::Tensor>(160 / image.size(2) + 1, wide), 2).narrow(2, 0, 160);
    return high * at::ones({160, 224}).cumsum(0).div_(160);  // no two rows alike
  }
  VaeDir dir_{GetParam()};
  c10::NoGradGuard no_grad_;
};

// A cache that one machine filled is read by others: of any number of threads, with any pictures missing.
TEST_P(VaeBits, LatentsDependOnNeitherThreadsNorCompany) {
  const Threads restored;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto vae = make_vae(dir_.diffusers, dir_.config, "never", dtype);
    at::set_num_threads(1);
    const at::Tensor one = vae->moments(pictures());
    for (const int threads : {2, 3}) {
      at::set_num_threads(threads);
      EXPECT_TRUE(same_bits(vae->moments(pictures()), one)) << dtype << " " << threads;
      for (int64_t i = 0; i < one.size(0); ++i) {
        EXPECT_TRUE(same_bits(vae->moments(pictures().narrow(0, i, 1)), one.narrow(0, i, 1))) << dtype << " " << i;
      }
    }
  }
}

TEST_P(VaeBits, WeightsAreLaidOutWhenFirstEncoding) {
  flux2_vae::Requirements none;
  auto config = make_vae(dir_.diffusers, dir_.config)->config();
  EXPECT_FALSE(flux2_vae::Encoder(none, config).conv_in.packed);
  const auto vae = make_vae(dir_.diffusers, dir_.config);
  const at::Tensor latents = vae->encode(dir_.data.at("image").unsqueeze(2));
  EXPECT_TRUE(same_bits(vae->encode(dir_.data.at("image").unsqueeze(2)), latents)) << "the second time";
}

/// Encodes in bf16 and ends the process: 0 where the numbers are right.
[[noreturn]] void encode_bf16_and_exit(const VaeDir& dir) {
  const bool packs = flux2_vae::can_pack(at::ones({16, 16, 3, 3}, at::kBFloat16));
  const auto vae = make_vae(dir.diffusers, dir.config, "never", at::kBFloat16);
  const at::Tensor latents = vae->encode(dir.data.at("image").unsqueeze(2)).flatten(2).transpose(1, 2);
  std::_Exit(packs ? 3 : l2_error(latents, dir.data.at("encode.packed")) < 0.5 ? 0 : 4);
}

// oneDNN held below what the processor can: its bf16 is not there, and must not end the program.
TEST_P(VaeBits, Bf16WhereOneDnnHasNone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own: oneDNN reads the variable once
  const Variable held("ONEDNN_MAX_CPU_ISA", "AVX2");
  EXPECT_EXIT(encode_bf16_and_exit(dir_), testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Dirs, VaeBits, testing::ValuesIn(parity_dirs()), DirName{});

}  // namespace
}  // namespace trainer::test
