/// @file fp8 weight-only: frozen linear weights in e4m3 with fp32 scales. Matrix products stay in the compute dtype;
/// only the bytes held for weights change.
#include <c10/core/ScalarType.h>
#include <trainer/sdk/names.hpp>
#include <trainer/sdk/plugin.hpp>

#include <set>

#include "fp8_weight.hpp"

namespace {

using namespace trainer;

/// Brackets the backward of a block: what its recompute expands, its backward uses again.
class KeepBlock final : public WeightResidency {
 public:
  void plan(std::span<Block* const> blocks) override {
    for (const Block* block : blocks)
      if (!weights_of(*block).empty()) untried_.insert(block);
    packed_ = !untried_.empty();
  }
  /// Throws Error (bad_recipe) when the backward of every block has come and none found anything kept.
  void before(const Site& site, Pass pass) override {
    if (pass == Pass::forward && packed_ && untried_.empty() && !used_)
      throw Error(
          ExitCode::bad_recipe,
          "memory.fp8_weight_only.keep: \"block\" keeps what the recompute of a block expands, and no block is "
          "recomputed; add \"full_checkpointing\" or \"selective_checkpointing\" to memory.strategies, or leave "
          "keep out");
    if (pass == Pass::backward)
      for (fp8::Fp8Weight* weight : weights_of(*site.block)) weight->keep();
  }
  void after(const Site& site, Pass pass) noexcept override {
    if (pass != Pass::backward) return;
    untried_.erase(site.block);
    for (fp8::Fp8Weight* weight : weights_of(*site.block)) {
      used_ = used_ || weight->kept_bytes() > 0;
      weight->release();
    }
  }

 private:
  static std::vector<fp8::Fp8Weight*> weights_of(const Block& block) {
    std::vector<fp8::Fp8Weight*> weights;
    for (const Linear& linear : block.info().linears)
      if (auto* weight = dynamic_cast<fp8::Fp8Weight*>(linear.state().frozen.get())) weights.push_back(weight);
    return weights;
  }
  std::set<const Block*> untried_;  ///< blocks with packed weights whose backward has not come yet
  bool packed_ = false, used_ = false;
};

class Fp8WeightOnly final : public MemoryStrategy, public WeightFormat {
 public:
  explicit Fp8WeightOnly(const Options& options)
      : granularity_(eight_bits::granularity_from(options.get<std::string>("granularity"),
                                                  "memory.fp8_weight_only.granularity")),
        keep_block_(options.get<std::string>("keep") == "block"),
        excluded_("fp8_weight_only", options.list<std::string>("exclude")) {}
  WeightFormat* weight_format() override { return this; }
  WeightResidency* weight_residency() override { return keep_block_ ? &residency_ : nullptr; }

  std::unique_ptr<FrozenWeight> pack(const LinearState& linear, const std::string& name, WeightSource& source,
                                     at::ScalarType) override {
    if (linear.in == 0 || linear.out == 0) return nullptr;
    excluded_.require_matches(source);
    if (std::optional<eight_bits::Packed> stored = eight_bits::stored_fp8(source, name))
      return std::make_unique<fp8::Fp8Weight>(std::move(*stored));
    if (excluded_.contains(linear.name)) return nullptr;
    if (const at::ScalarType stored = source.find(name)->dtype; !c10::isFloatingType(stored))
      throw Error(ExitCode::bad_input, source.describe() + ": tensor " + quote_name(name) + " is " +
                                           c10::toString(stored) + "; fp8_weight_only packs floating-point weights");
    return std::make_unique<fp8::Fp8Weight>(eight_bits::quantize(source.read(name), granularity_, name));
  }
  int64_t bytes(const LinearState& linear, at::ScalarType compute) const override {
    if (excluded_.contains(linear.name)) return WeightFormat::bytes(linear, compute);
    return linear.out * linear.in + eight_bits::scale_count(granularity_, linear.out, linear.in) * kScaleBytes;
  }

 private:
  static constexpr int64_t kScaleBytes = 4;  // fp32
  eight_bits::Granularity granularity_;
  bool keep_block_;
  eight_bits::ExcludedLayers excluded_;
  KeepBlock residency_;
};

void init(Registrar& registrar) {
  registrar.add(MemoryComponent{"fp8_weight_only", [](const Options& options) -> std::unique_ptr<MemoryStrategy> {
                                  return std::make_unique<Fp8WeightOnly>(options);
                                }});
}

}  // namespace

TRAINER_PLUGIN("fp8_weight_only", "0.1.0", init)
