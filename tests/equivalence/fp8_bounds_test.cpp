/// @file How far fp8 may be from the dense run, where the bound is not guessed: the same cell is trained on weights
/// that chance has moved as far, layer by layer, as the packing moved them. What packing does to losses and gradients
/// is then that of its format's rounding error and no more, whatever the model makes of errors of that size. The table
/// is that of docs/proof.md.
#include <ATen/TensorOperators.h>
#include <ATen/ops/norm.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <execution/keyed_random.hpp>
#include <support/plugins.hpp>

#include "subjects.hpp"

namespace trainer::equivalence {
namespace {

using prove::Distance;
using prove::Setting;
using prove::Trained;
using prove::Trajectory;

constexpr uint64_t kSeeds = 5;
constexpr double kMargin = 2.5;  ///< of the largest distance over the seeds

at::Tensor norm_of(const at::Tensor& tensor) { return at::norm(tensor); }

/// The weights of the file, moved by chance as far as `inner` moves them.
class Noisy final : public MemoryStrategy, public WeightFormat {
 public:
  Noisy(std::unique_ptr<MemoryStrategy> inner, uint64_t seed, double& error)
      : inner_(std::move(inner)), seed_(seed), error_(error) {}
  WeightFormat* weight_format() override { return this; }
  std::unique_ptr<FrozenWeight> pack(const LinearState& linear, const std::string& name, WeightSource& source,
                                     at::ScalarType compute) override {
    const auto packed = inner_->weight_format()->pack(linear, name, source, compute);
    if (packed == nullptr) return nullptr;
    const at::Tensor file = source.read(name).to(at::kFloat);
    const at::Tensor moved = norm_of(packed->dense(at::kFloat) - file);
    error_ = std::max(error_, (moved / norm_of(file)).item<double>());
    const at::Tensor noise =
        execution::keyed_normal(KeyedRng(seed_, RngStream::synthetic, 0, layers_++), {linear.out, linear.in});
    return std::make_unique<DenseWeight>((file + noise * (moved / norm_of(noise))).to(compute));
  }

 private:
  std::unique_ptr<MemoryStrategy> inner_;
  uint64_t seed_, layers_ = 0;
  double& error_;  ///< largest relative one of a layer
};

/// Largest of each.
Distance larger(const Distance& a, const Distance& b) {
  return {std::max(a.loss, b.loss), std::max(a.gradients, b.gradients), std::max(a.later, b.later)};
}

struct Measured {
  double weights = 0;  ///< largest relative error of a layer's weights
  Distance packed, noise;
};

std::unique_ptr<MemoryStrategy> fp8(const std::string& granularity) {
  return testing::make_strategy("fp8_weight_only", {{"granularity", {granularity}}});
}

Trajectory run(const Setting& setting, std::unique_ptr<MemoryStrategy> strategy) {
  std::vector<execution::MemoryStack::Named> named;
  if (strategy != nullptr) named.push_back({"fp8_weight_only", std::move(strategy)});
  return prove::run_cell(loader(), setting, execution::MemoryStack(std::move(named)));
}

Measured measure(const Setting& setting, const std::string& granularity, const Trajectory& dense) {
  Measured measured;
  measured.packed = distance(run(setting, fp8(granularity)), dense);
  for (uint64_t seed = 1; seed <= kSeeds; ++seed)
    measured.noise =
        larger(measured.noise,
               distance(run(setting, std::make_unique<Noisy>(fp8(granularity), seed, measured.weights)), dense));
  return measured;
}

class Fp8Bounds : public ::testing::TestWithParam<std::string> {};

TEST_P(Fp8Bounds, AreThoseOfChanceOfTheSameSize) {
  // 3 bits of mantissa: an error of at most 2^-4 of the element, uniform at the worst.
  const double format = std::pow(2.0, -4) / std::sqrt(3.0);
  for (const prove::Subject& subject : subjects()) {
    Measured all;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const Trained trained : {Trained::default_targets, Trained::shared_layers}) {
        Setting setting{subject, dtype, trained, 3};
        setting.objective = objective_of(subject);
        const Measured one = measure(setting, GetParam(), run(setting, nullptr));
        SCOPED_TRACE(text_of(setting) + ": packed " + one.packed.text() + "; chance " + one.noise.text());
        EXPECT_GT(one.packed.gradients, 0);
        EXPECT_LE(one.packed.gradients, kMargin * one.noise.gradients);
        EXPECT_LE(one.packed.later, kMargin * one.noise.later);
        all.weights = std::max(all.weights, one.weights);
        all.packed = larger(all.packed, one.packed);
        all.noise = larger(all.noise, one.noise);
      }
    // A loss is one number, in which errors cancel now and then: held over the settings together.
    EXPECT_LE(all.packed.loss, kMargin * all.noise.loss) << subject.name;
    EXPECT_LE(all.weights, format) << subject.name;
    std::printf("| %s | %s | %.4f | %.4f / %.4f | %.3f / %.3f | %.3f / %.3f |\n", subject.name.c_str(),
                GetParam().c_str(), all.weights, all.packed.loss, all.noise.loss, all.packed.gradients,
                all.noise.gradients, all.packed.later, all.noise.later);
  }
}

INSTANTIATE_TEST_SUITE_P(Granularities, Fp8Bounds, ::testing::Values("tensor", "channel", "block"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace trainer::equivalence
