/// @file fp8 weight-only: frozen linear weights in e4m3 with fp32 scales. Matrix products stay in the compute dtype;
/// only the bytes held for weights change.
#include <c10/core/ScalarType.h>
#include <trainer/sdk/names.hpp>
#include <trainer/sdk/plugin.hpp>

#include "fp8_weight.hpp"
#include "stored.hpp"

namespace {

using namespace trainer;

/// Brackets the backward of a block: what its recompute expands, its backward uses again.
class KeepBlock final : public WeightResidency {
 public:
  void plan(std::span<Block* const>) override {}
  void before(const Site& site, Pass pass) override {
    if (pass == Pass::backward)
      for (fp8::Fp8Weight* weight : weights_of(site)) weight->keep();
  }
  void after(const Site& site, Pass pass) noexcept override {
    if (pass == Pass::backward)
      for (fp8::Fp8Weight* weight : weights_of(site)) weight->release();
  }

 private:
  static std::vector<fp8::Fp8Weight*> weights_of(const Site& site) {
    std::vector<fp8::Fp8Weight*> weights;
    for (const Linear& linear : site.block->info().linears)
      if (auto* weight = dynamic_cast<fp8::Fp8Weight*>(linear.state().frozen.get())) weights.push_back(weight);
    return weights;
  }
};

class Fp8WeightOnly final : public MemoryStrategy, public WeightFormat {
 public:
  explicit Fp8WeightOnly(const Options& options)
      : granularity_(fp8::granularity_from(options.get<std::string>("granularity"))),
        keep_block_(options.get<std::string>("keep") == "block"),
        exclude_(options.list<std::string>("exclude")) {}
  WeightFormat* weight_format() override { return this; }
  WeightResidency* weight_residency() override { return keep_block_ ? &residency_ : nullptr; }

  std::unique_ptr<FrozenWeight> pack(const LinearState& linear, const std::string& name, WeightSource& source,
                                     at::ScalarType) override {
    if (linear.in == 0 || linear.out == 0) return nullptr;
    if (std::optional<fp8::Packed> stored = fp8::stored_fp8(source, name))
      return std::make_unique<fp8::Fp8Weight>(std::move(*stored));
    for (const std::string& pattern : exclude_)
      if (matches_glob(pattern, linear.name)) return nullptr;
    if (const at::ScalarType stored = source.find(name)->dtype; !c10::isFloatingType(stored))
      throw Error(ExitCode::bad_input, source.describe() + ": tensor " + quote_name(name) + " is " +
                                           c10::toString(stored) + "; fp8_weight_only packs floating-point weights");
    return std::make_unique<fp8::Fp8Weight>(fp8::quantize(source.read(name), granularity_, name));
  }
  int64_t bytes(const LinearState& linear, at::ScalarType compute) const override {
    for (const std::string& pattern : exclude_)
      if (matches_glob(pattern, linear.name)) return WeightFormat::bytes(linear, compute);
    constexpr int64_t kScaleBytes = 4;  // one fp32 scale a row at most
    return linear.out * (linear.in + kScaleBytes);
  }

 private:
  fp8::Granularity granularity_;
  bool keep_block_;
  std::vector<std::string> exclude_;
  KeepBlock residency_;
};

void init(Registrar& registrar) {
  registrar.add(MemoryComponent{"fp8_weight_only", [](const Options& options) -> std::unique_ptr<MemoryStrategy> {
                                  return std::make_unique<Fp8WeightOnly>(options);
                                }});
}

}  // namespace

TRAINER_PLUGIN("fp8_weight_only", "0.1.0", init)
