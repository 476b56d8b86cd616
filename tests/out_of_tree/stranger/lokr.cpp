/// @file LoKr: an adapter whose update of a weight is a Kronecker product (Yeh et al. 2023, LyCORIS),
/// W' = W + alpha / rank * kron(w1, w2_a w2_b). Names, factors, shapes and initial values are those of LyCORIS 3's
/// `lycoris/modules/lokr.py`; the product is never formed: with in = (b, d) and out = (a, c),
/// kron(w1, w2) x = w1 X w2^T for x as the matrix X [b, d].
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <trainer/sdk/plugin.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace {

using namespace trainer;

/// `number` = first * second, first <= second, first the largest divisor up to `factor`; -1: as near to the root as
/// there is one (LyCORIS' `factorization`).
std::pair<int64_t, int64_t> factors(int64_t number, int64_t factor) {
  if (factor > 0 && number % factor == 0) return {std::min(factor, number / factor), std::max(factor, number / factor)};
  const int64_t limit = factor < 0 ? number : factor;
  int64_t first = 1;
  for (int64_t d = 2; d <= limit && d * d <= number; ++d)
    if (number % d == 0) first = d;
  return {first, number / first};
}

/// Shapes of one layer: w1 [a, b], w2 [c, d]; w2 is two low-rank matrices where that is smaller.
struct Shapes {
  int64_t a, b, c, d;
  bool low_rank;
};

class LokrLayer final : public LinearAdapter {
 public:
  LokrLayer(Shapes shapes, double alpha, std::vector<std::shared_ptr<Parameter>> parameters)
      : shapes_(shapes), alpha_(alpha), parameters_(std::move(parameters)) {}

  at::Tensor apply(const at::Tensor& x, const at::Tensor& y) const override {
    const at::Tensor& w1 = parameters_[0]->get();
    const at::Tensor w2 =
        shapes_.low_rank ? at::mm(parameters_[1]->get(), parameters_[2]->get()) : parameters_[1]->get();
    const int64_t rows = x.size(0);
    const at::Tensor wide = x.to(w1.scalar_type()).reshape({rows * shapes_.b, shapes_.d});
    const at::Tensor inner = at::mm(wide, w2.t()).view({rows, shapes_.b, shapes_.c}).transpose(1, 2);
    const at::Tensor outer = at::mm(inner.reshape({rows * shapes_.c, shapes_.b}), w1.t());
    const at::Tensor update = outer.view({rows, shapes_.c, shapes_.a}).transpose(1, 2).reshape(y.sizes());
    return (y.to(w1.scalar_type()) + update * scale()).to(y.scalar_type());
  }
  std::vector<Parameter*> parameters() override {
    std::vector<Parameter*> list;
    for (const auto& parameter : parameters_) list.push_back(parameter.get());
    return list;
  }
  [[nodiscard]] const std::vector<std::shared_ptr<Parameter>>& matrices() const { return parameters_; }
  [[nodiscard]] double alpha() const { return alpha_; }

 private:
  /// alpha / rank; a full factor has no rank.
  [[nodiscard]] double scale() const {
    return shapes_.low_rank ? alpha_ / static_cast<double>(parameters_[1]->value().size(1)) : 1.0;
  }

  Shapes shapes_;
  double alpha_;
  std::vector<std::shared_ptr<Parameter>> parameters_;
};

class Lokr final : public Adapter {
 public:
  /// Options that the file of `adapter.path` says are not given then.
  explicit Lokr(const Options& options)
      : rank_(options.get_or<int64_t>("rank", 0)),
        factor_(options.get_or<int64_t>("factor", -1)),
        alpha_(options.get_or<double>("alpha", 0)),
        targets_(options.list<std::string>("targets")) {}

  void start_from(AdapterFile file) override {
    for (const auto& [layer, tensors] : file.layers) {
      const bool whole = tensors.contains("lokr_w2"),
                 parts = tensors.contains("lokr_w2_a") && tensors.contains("lokr_w2_b");
      if (!tensors.contains("lokr_w1") || whole == parts)
        throw Error(ExitCode::bad_input, "adapter.path: the file lacks a factor of \"" + layer + "\"");
      if (rank_ != 0 && parts && tensors.at("lokr_w2_a").size(1) != rank_)
        throw Error(ExitCode::bad_recipe,
                    "adapter.rank: the file has another rank on \"" + layer + "\"; leave rank out to take the file's");
    }
    if (const auto factor = file.metadata.find(kFactor); factor != file.metadata.end())
      factor_ = std::stoll(factor->second);
    first_ = std::move(file.layers);
  }
  std::unique_ptr<LinearAdapter> attach(const LinearState& state, const AttachContext& context) const override {
    if (!first_.empty()) return attach_first(state, context);
    const Shapes s = shapes_of(state);
    // kaiming_uniform with a = sqrt(5): 1 / sqrt(columns) either way. What is multiplied last begins at zero.
    const auto random = [&](const std::string& name, int64_t rows, int64_t columns) {
      const double bound = 1 / std::sqrt(static_cast<double>(columns));
      return trained(state.name + name, context.uniform(-bound, bound, {rows, columns}));
    };
    std::vector<std::shared_ptr<Parameter>> list{random(".lokr_w1", s.a, s.b)};
    if (s.low_rank) {
      list.push_back(random(".lokr_w2_a", s.c, rank_));
      list.push_back(trained(state.name + ".lokr_w2_b", at::zeros({rank_, s.d}, list[0]->value().options())));
    } else {
      list.push_back(trained(state.name + ".lokr_w2", at::zeros({s.c, s.d}, list[0]->value().options())));
    }
    return std::make_unique<LokrLayer>(s, s.low_rank ? alpha_ : static_cast<double>(rank_), std::move(list));
  }
  [[nodiscard]] std::vector<std::string> targets() const override { return targets_; }

  [[nodiscard]] NamedTensors export_layer(const LinearState& state) const override {
    const auto& layer = dynamic_cast<const LokrLayer&>(*state.adapter);
    NamedTensors tensors;
    for (const auto& matrix : layer.matrices()) tensors[matrix->name()] = matrix->value().detach().cpu();
    tensors[state.name + ".alpha"] = at::full({}, layer.alpha(), at::TensorOptions(at::kFloat));
    return tensors;
  }
  [[nodiscard]] std::map<std::string, std::string> metadata() const override {
    return {{kFactor, std::to_string(factor_)}};
  }
  [[nodiscard]] std::string describe() const override {
    if (!first_.empty()) return "LoKr from a file of " + std::to_string(first_.size()) + " layers";
    return "LoKr rank " + std::to_string(rank_) + ", factor " + std::to_string(factor_);
  }

 private:
  static constexpr const char* kFactor = "lokr.factor";  ///< in the file's metadata

  static std::shared_ptr<Parameter> trained(const std::string& name, at::Tensor value) {
    return std::make_shared<Parameter>(name, value.requires_grad_(true));
  }
  [[nodiscard]] Shapes shapes_of(const LinearState& state) const {
    const auto [b, d] = factors(state.in, factor_);
    const auto [a, c] = factors(state.out, factor_);
    return {a, b, c, d, rank_ < std::max(c, d) / 2.0};
  }
  /// The file's factors of this layer as trained leaves.
  [[nodiscard]] std::unique_ptr<LinearAdapter> attach_first(const LinearState& state,
                                                            const AttachContext& context) const {
    const auto it = first_.find(state.name);
    if (it == first_.end())
      throw Error(ExitCode::bad_recipe, "adapter.targets: the file has no factors for \"" + state.name + "\"");
    const NamedTensors& tensors = it->second;
    std::vector<std::shared_ptr<Parameter>> list;
    for (const char* name : {"lokr_w1", "lokr_w2", "lokr_w2_a", "lokr_w2_b"})
      if (const auto stored = tensors.find(name); stored != tensors.end())
        list.push_back(trained(state.name + "." + name, stored->second.to(context.device, at::kFloat,
                                                                          /*non_blocking=*/false, /*copy=*/true)));
    const at::Tensor& w1 = tensors.at("lokr_w1");
    const bool low_rank = list.size() == 3;
    const Shapes s{w1.size(0), w1.size(1), state.out / w1.size(0), state.in / w1.size(1), low_rank};
    if (s.a * s.c != state.out || s.b * s.d != state.in || list[1]->value().size(0) != s.c ||
        list.back()->value().size(1) != s.d)
      throw Error(ExitCode::bad_input, "adapter.path: the factors of \"" + state.name + "\" do not fit the layer");
    const auto alpha = tensors.find("alpha");
    const double scale = low_rank ? static_cast<double>(list[1]->value().size(1)) : 1;
    return std::make_unique<LokrLayer>(s, alpha == tensors.end() ? scale : alpha->second.to(at::kDouble).item<double>(),
                                       std::move(list));
  }

  int64_t rank_;
  int64_t factor_;
  double alpha_;
  std::vector<std::string> targets_;
  std::map<std::string, NamedTensors> first_;  ///< of the file, by layer; empty: fresh values
};

void init(Registrar& registrar) {
  registrar.add(AdapterComponent{
      "lokr", [](const Options& options) -> std::unique_ptr<Adapter> { return std::make_unique<Lokr>(options); }});
}

}  // namespace

TRAINER_PLUGIN("lokr", "0.1.0", init)
