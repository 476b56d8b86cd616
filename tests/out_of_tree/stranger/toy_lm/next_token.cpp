/// @file The objective of a causal language model: every token foretells the next. The logits are taken slice by slice
/// of the vocabulary, so that the whole of them, the largest tensor of a language model, never stands in memory at once
/// in the forward.
#include <ATen/TensorOperators.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <trainer/sdk/objective.hpp>

#include <algorithm>

#include "parts.hpp"

namespace toy_lm {
namespace {

using namespace trainer;

class NextToken final : public Objective {
 public:
  explicit NextToken(const Options& options) : slice_(options.get<int64_t>("slice")) {}

  [[nodiscard]] std::vector<std::string> provides() const override { return {}; }

  /// Conditioning "tokens" [B, L] of the text encoder: all but the last are read, all but the first are foretold.
  [[nodiscard]] Example prepare(const Batch& batch, const Model&, const Random&) const override {
    const auto found = batch.conditioning.find("tokens");
    if (found == batch.conditioning.end())
      throw Error(ExitCode::bad_recipe, "objective \"next_token\" needs a text encoder that gives \"tokens\"");
    const at::Tensor& tokens = found->second;
    const at::Tensor read = tokens.narrow(1, 0, tokens.size(1) - 1), next = tokens.narrow(1, 1, tokens.size(1) - 1);
    Example example;
    example.inputs["tokens"] = read;
    example.targets["next"] = next;
    // After the end of a text there is nothing to foretell; the end itself is foretold, the beginning ends nothing.
    const at::Tensor ends = read.eq(kEnd).cumsum(1);
    example.targets["counts"] = ends.lt(2);
    return example;
  }

  [[nodiscard]] at::Tensor loss(const Example& example, const Prediction& predict) const override {
    const at::Tensor& next = example.targets.at("next");
    const at::Tensor& counts = example.targets.at("counts");
    at::Tensor all, chosen;  // log sum of exponentials of what came so far; the logit of the right token
    for (int64_t begin = 0; begin < kEnd + 1; begin += slice_) {
      const int64_t end = std::min(begin + slice_, kEnd + 1);
      const at::Tensor logits = predict.slice(begin, end).to(at::kFloat);
      const at::Tensor sum = at::logsumexp(logits, {-1});
      all = all.defined() ? at::logaddexp(all, sum) : sum;
      const at::Tensor here = next.ge(begin).logical_and(next.lt(end));
      const at::Tensor logit = logits.gather(-1, (next - begin).clamp(0, end - begin - 1).unsqueeze(-1)).squeeze(-1);
      const at::Tensor part = at::where(here, logit, at::zeros_like(logit));
      chosen = chosen.defined() ? chosen + part : part;
    }
    const at::Tensor loss = at::where(counts, all - chosen, at::zeros_like(all));
    return loss.sum() / counts.sum();
  }

 private:
  int64_t slice_;
};

}  // namespace

std::unique_ptr<Objective> make_next_token(const Options& options) { return std::make_unique<NextToken>(options); }

}  // namespace toy_lm
