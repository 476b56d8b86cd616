/// @file See trial_checks.hpp.
#include "trial_checks.hpp"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>

#include <stdexcept>
#include <string>

namespace trainer::fused {
namespace {

constexpr const char* kFull = "highest";

std::mutex& settings() {
  static std::mutex mutex;
  return mutex;
}

const char* precision() {
  const at::Float32MatmulPrecision set = at::globalContext().float32MatmulPrecision();
  return set == at::Float32MatmulPrecision::HIGHEST ? kFull
         : set == at::Float32MatmulPrecision::HIGH  ? "high"
                                                    : "medium";
}

}  // namespace

// Where it is full already nothing is set: LibTorch tells a setting from none.
FullPrecision::FullPrecision() : one_(settings()), before_(precision()) {
  if (before_ != kFull) at::globalContext().setFloat32MatmulPrecision(kFull);
}

FullPrecision::~FullPrecision() {
  if (before_ != kFull) at::globalContext().setFloat32MatmulPrecision(before_);
}

void require_same_results(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor wanted = expected[i].to(at::kDouble);
    const double limit = expected[i].scalar_type() == at::kFloat ? 1e-4 : 2e-2;
    const double apart = (got.at(i).to(at::kCPU, at::kDouble) - wanted).abs().max().item<double>();
    if (const double error = apart / wanted.abs().max().item<double>(); !(error <= limit))
      throw std::runtime_error("result " + std::to_string(i) + " is off by " + std::to_string(error));
  }
}

}  // namespace trainer::fused
