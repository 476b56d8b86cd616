#include "lora.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/low_rank.hpp>

#include <cmath>
#include <map>
#include <utility>

namespace trainer::lora {
namespace {

constexpr const char* kA = "lora_A.weight";
constexpr const char* kB = "lora_B.weight";

/// Without trailing zeros.
std::string text_of(double number) {
  std::string text = std::to_string(number);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

class LoraLayerAdapter final : public LowRankAdapter {
 public:
  LoraLayerAdapter(const std::string& layer, at::Tensor a, at::Tensor b, double scale)
      : a_(layer + "." + kA, std::move(a)), b_(layer + "." + kB, std::move(b)), scale_(scale) {}

  [[nodiscard]] Pair pair() const override { return {a_.get(), b_.get(), scale_}; }
  std::vector<Parameter*> parameters() override { return {&a_, &b_}; }
  [[nodiscard]] const Parameter& a() const { return a_; }
  [[nodiscard]] const Parameter& b() const { return b_; }
  [[nodiscard]] double scale() const { return scale_; }

 private:
  Parameter a_, b_;
  double scale_;
};

/// What a file holds for one layer.
struct StoredPair {
  at::Tensor a, b;
  double alpha = 0;
  [[nodiscard]] int64_t rank() const { return a.size(0); }
};

StoredPair pair_of(const NamedTensors& tensors) {
  StoredPair pair{tensors.at(kA), tensors.at(kB), 0};
  const auto alpha = tensors.find("alpha");
  pair.alpha = alpha != tensors.end() ? alpha->second.item<double>() : static_cast<double>(pair.rank());
  return pair;
}

class Lora final : public Adapter {
 public:
  explicit Lora(const Options& options)
      : rank_(options.get_or<int64_t>("rank", 0)),
        alpha_(options.get_or<double>("alpha", 0)),
        init_(options.get<std::string>("init")) {
    if (const auto* one = options.values().at("targets").get_if<std::string>()) {
      if (*one == "all")
        targets_ = {"*"};
      else if (*one != "default")
        targets_ = {*one};
    } else {
      targets_ = options.list<std::string>("targets");
    }
  }

  void start_from(AdapterFile file) override {
    for (const auto& [layer, tensors] : file.layers) {
      const StoredPair pair = pair_of(tensors);
      if (rank_ != 0 && pair.rank() != rank_)
        throw conflict("rank", std::to_string(rank_), layer, std::to_string(pair.rank()));
      if (alpha_ != 0 && pair.alpha != alpha_) throw conflict("alpha", text_of(alpha_), layer, text_of(pair.alpha));
      first_.emplace(layer, pair);
    }
  }
  std::unique_ptr<LinearAdapter> attach(const LinearState& state, const AttachContext& context) const override {
    if (!first_.empty()) return attach_first(state, context);
    const std::vector<int64_t> shape{rank_, state.in};
    const double bound = 1.0 / std::sqrt(static_cast<double>(state.in));
    at::Tensor a = init_ == "gaussian" ? context.normal(0.0, 1.0 / static_cast<double>(rank_), shape)
                                       : context.uniform(-bound, bound, shape);
    at::Tensor b = at::zeros({state.out, rank_}, a.options());
    return std::make_unique<LoraLayerAdapter>(state.name, a.requires_grad_(true), b.requires_grad_(true),
                                              alpha() / static_cast<double>(rank_));
  }
  std::vector<std::string> targets() const override { return targets_; }

  /// alpha / rank is folded into B, so that readers that know no alpha apply the right strength.
  NamedTensors export_layer(const LinearState& state) const override {
    const auto& layer = dynamic_cast<const LoraLayerAdapter&>(*state.adapter);
    NamedTensors tensors;
    tensors[layer.a().name()] = layer.a().value().detach().cpu();
    tensors[layer.b().name()] = (layer.b().value().detach() * layer.scale()).cpu();
    return tensors;
  }
  std::string describe() const override {
    if (!first_.empty()) return "LoRA from a file, rank " + std::to_string(first_.begin()->second.rank());
    return "LoRA rank " + std::to_string(rank_) + ", alpha " + text_of(alpha());
  }

 private:
  [[nodiscard]] double alpha() const { return alpha_ != 0 ? alpha_ : static_cast<double>(rank_); }
  static Error conflict(const std::string& key, const std::string& ours, const std::string& layer,
                        const std::string& theirs) {
    return {ExitCode::bad_recipe, "adapter." + key + ": the recipe says " + ours + ", the file has " + theirs +
                                      " on \"" + layer + "\"; leave " + key + " out to take the file's"};
  }
  /// The file's pair as trained leaves.
  std::unique_ptr<LinearAdapter> attach_first(const LinearState& state, const AttachContext& context) const {
    const auto it = first_.find(state.name);
    if (it == first_.end())
      throw Error(ExitCode::bad_recipe, "adapter.targets: the file has no matrices for \"" + state.name +
                                            "\"; leave targets out to train the file's layers");
    const StoredPair& pair = it->second;
    const auto leaf = [&](const at::Tensor& values) {
      return values.to(context.device, at::kFloat, /*non_blocking=*/false, /*copy=*/true).requires_grad_(true);
    };
    return std::make_unique<LoraLayerAdapter>(state.name, leaf(pair.a), leaf(pair.b),
                                              pair.alpha / static_cast<double>(pair.rank()));
  }

  int64_t rank_;  ///< 0: not given, the file says it
  double alpha_;  ///< 0: not given
  std::string init_;
  std::vector<std::string> targets_;
  std::map<std::string, StoredPair> first_;  ///< by layer; empty: fresh values
};

}  // namespace

std::unique_ptr<Adapter> make_lora(const Options& options) { return std::make_unique<Lora>(options); }

}  // namespace trainer::lora
