#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <base/heartbeat.hpp>
#include <sampling/euler.hpp>
#include <string>
#include <trainer/sdk/error.hpp>

namespace trainer::sampling {
namespace {

void check_sigmas(std::span<const double> sigmas) {
  bool good = sigmas.size() >= 2 && sigmas.back() == 0;
  for (std::size_t i = 1; good && i < sigmas.size(); ++i) good = sigmas[i] < sigmas[i - 1];
  if (good) return;
  std::string text;
  for (const double sigma : sigmas) text += (text.empty() ? "" : ", ") + std::to_string(sigma);
  throw Error(ExitCode::failed, "sampling sigmas must fall and end with 0, but are [" + text + "]");
}

}  // namespace

at::Tensor euler(const Velocity& velocity, std::span<const double> sigmas, const at::Tensor& noise,
                 const Progress& progress) {
  const c10::NoGradGuard no_grad;
  check_sigmas(sigmas);
  const auto steps = static_cast<int64_t>(sigmas.size()) - 1;
  at::Tensor x = noise.to(at::kFloat);
  for (int64_t i = 0; i < steps; ++i) {
    beat();
    const at::Tensor v = velocity(x, sigmas[i]);
    if (v.sizes() != x.sizes())
      throw Error(ExitCode::failed, "the model's velocity has another shape than its latents");
    x = x + v.to(x.device(), at::kFloat) * (sigmas[i + 1] - sigmas[i]);
    if (progress) progress(i + 1, steps, x);
  }
  return x;
}

}  // namespace trainer::sampling
