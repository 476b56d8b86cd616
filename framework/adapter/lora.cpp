#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <adapter/inject.hpp>
#include <adapter/lora.hpp>
#include <recipe/schema.hpp>
#include <trainer/sdk/low_rank.hpp>

#include <cmath>
#include <map>
#include <utility>

namespace trainer::adapter {
namespace {

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
      : a_(layer + ".lora_A.weight", std::move(a)), b_(layer + ".lora_B.weight", std::move(b)), scale_(scale) {}

  [[nodiscard]] Pair pair() const override { return {a_.get(), b_.get(), scale_}; }
  std::vector<Parameter*> parameters() override { return {&a_, &b_}; }
  [[nodiscard]] const Parameter& a() const { return a_; }
  [[nodiscard]] const Parameter& b() const { return b_; }
  [[nodiscard]] double scale() const { return scale_; }

 private:
  Parameter a_, b_;
  double scale_;
};

class Lora final : public Adapter, public FromFile {
 public:
  explicit Lora(const Options& options)
      : rank_given_(options.has("rank")),
        alpha_given_(options.has("alpha")),
        rank_(options.get_or<int64_t>("rank", recipe::kDefaultRank)),
        alpha_(options.get_or<double>("alpha", 0)),
        init_(options.get<std::string>("init")) {
    if (alpha_ == 0) alpha_ = static_cast<double>(rank_);
    if (const auto* one = options.values().at("targets").get_if<std::string>()) {
      if (*one == "all")
        targets_ = {"*"};
      else if (*one != "default")
        targets_ = {*one};
    } else {
      targets_ = options.list<std::string>("targets");
    }
  }

  void start_from(std::vector<LoraLayer> layers) override {
    check_file(layers);
    std::vector<std::string> names;
    for (LoraLayer& layer : layers) {
      names.push_back(layer.layer);
      first_.emplace(layer.layer, std::move(layer));
    }
    if (targets_.empty()) targets_ = std::move(names);
  }
  std::unique_ptr<LinearAdapter> attach(const LinearState& state, const Init& uniform,
                                        const InitNormal& normal) const override {
    if (!first_.empty()) return attach_first(state, uniform);
    const std::vector<int64_t> shape{rank_, state.in};
    const double bound = 1.0 / std::sqrt(static_cast<double>(state.in));
    at::Tensor a =
        init_ == "gaussian" ? normal(0.0, 1.0 / static_cast<double>(rank_), shape) : uniform(-bound, bound, shape);
    at::Tensor b = at::zeros({state.out, rank_}, a.options());
    return std::make_unique<LoraLayerAdapter>(state.name, a.requires_grad_(true), b.requires_grad_(true),
                                              alpha_ / static_cast<double>(rank_));
  }
  std::vector<std::string> targets() const override { return targets_; }
  std::vector<std::string> layers_of_file() const override {
    std::vector<std::string> names;
    for (const auto& [name, layer] : first_) names.push_back(name);
    return names;
  }

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
    return "LoRA rank " + std::to_string(rank_) + ", alpha " + text_of(alpha_);
  }

 private:
  /// What the recipe states and what the file holds must be one thing.
  void check_file(const std::vector<LoraLayer>& layers) const {
    for (const LoraLayer& layer : layers) {
      if (rank_given_ && layer.rank() != rank_)
        throw conflict("rank", std::to_string(rank_), layer, std::to_string(layer.rank()));
      if (alpha_given_ && layer.alpha != alpha_) throw conflict("alpha", text_of(alpha_), layer, text_of(layer.alpha));
    }
  }
  static Error conflict(const std::string& key, const std::string& ours, const LoraLayer& layer,
                        const std::string& theirs) {
    return {ExitCode::bad_recipe, "adapter." + key + ": the recipe says " + ours + ", the file has " + theirs +
                                      " on \"" + layer.layer + "\"; leave " + key + " out to take the file's"};
  }
  /// The file's pair as trained leaves, at the place where the init functions make theirs.
  std::unique_ptr<LinearAdapter> attach_first(const LinearState& state, const Init& uniform) const {
    const auto it = first_.find(state.name);
    if (it == first_.end())
      throw Error(ExitCode::bad_recipe, "adapter.targets: the file has no matrices for \"" + state.name +
                                            "\"; leave targets out to train the file's layers");
    const LoraLayer& layer = it->second;
    const auto leaf = [&](const at::Tensor& values) {
      at::Tensor tensor = uniform(0, 0, values.sizes());
      tensor.copy_(values);
      return tensor.requires_grad_(true);
    };
    return std::make_unique<LoraLayerAdapter>(state.name, leaf(layer.down), leaf(layer.up), layer.scale());
  }

  bool rank_given_, alpha_given_;
  int64_t rank_;
  double alpha_;
  std::string init_;
  std::vector<std::string> targets_;
  std::map<std::string, LoraLayer> first_;  // by layer; empty: fresh values
};

}  // namespace

std::unique_ptr<LinearAdapter> frozen_lora(const LoraLayer& layer, at::Device device) {
  const auto place = [&](const at::Tensor& values) { return values.to(device, at::kFloat); };
  return std::make_unique<LoraLayerAdapter>(layer.layer, place(layer.down), place(layer.up), layer.scale());
}

void register_lora(Registrar& registrar) {
  registrar.add(AdapterComponent{
      "lora", [](const Options& options) -> std::unique_ptr<Adapter> { return std::make_unique<Lora>(options); }});
}

}  // namespace trainer::adapter
