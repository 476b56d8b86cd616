/// @file fp8_w8a8 and int8_w8a8: frozen linear weights in 8 bits, multiplied with activations and gradients that are
/// made into 8 bits row by row.
#include <c10/core/ScalarType.h>
#include <trainer/sdk/names.hpp>
#include <trainer/sdk/plugin.hpp>
#include <trainer/sdk/weight_scales.hpp>

#include "w8a8_weight.hpp"

namespace {

using namespace trainer;
using w8a8::Code;
using w8a8::W8A8Weight;

const char* name_of(Code code) { return code == Code::int8 ? "int8_w8a8" : "fp8_w8a8"; }

class W8A8 final : public MemoryStrategy, public WeightFormat {
 public:
  W8A8(Code code, const Options& options)
      : code_(code),
        excluded_(name_of(code), options.list<std::string>("exclude")),
        shared_(std::make_shared<w8a8::Shared>(code == Code::e4m3 && options.get<bool>("fast_accumulation"))) {}
  WeightFormat* weight_format() override { return this; }

  std::unique_ptr<FrozenWeight> pack(const LinearState& linear, const std::string& name, WeightSource& source,
                                     at::ScalarType) override {
    if (linear.in == 0 || linear.out == 0) return nullptr;
    excluded_.require_matches(source);
    refuse_foreign(name, source);
    if (code_ == Code::e4m3)
      if (std::optional<eight_bits::Packed> stored = eight_bits::stored_fp8(source, name))
        return std::make_unique<W8A8Weight>(std::move(*stored), shared_);
    if (excluded_.contains(linear.name)) return nullptr;
    return std::make_unique<W8A8Weight>(
        eight_bits::quantize(source.read(name), eight_bits::Granularity::channel, name, code_), shared_);
  }
  int64_t bytes(const LinearState& linear, at::ScalarType compute) const override {
    if (excluded_.contains(linear.name)) return WeightFormat::bytes(linear, compute);
    constexpr int64_t kScaleBytes = 4;  // fp32, one an output channel
    return linear.out * linear.in + linear.out * kScaleBytes;
  }

 private:
  /// What int8 cannot take from a file without rounding it twice, and what is no number at all.
  void refuse_foreign(const std::string& name, const WeightSource& source) const {
    const at::ScalarType dtype = source.find(name)->dtype;
    const bool fp8 = c10::isFloat8Type(dtype);
    if (c10::isFloatingType(dtype) && !(code_ == Code::int8 && (fp8 || !scales_of(source, name).empty()))) return;
    throw Error(ExitCode::bad_input,
                source.describe() + ": tensor " + quote_name(name) + " is " + c10::toString(dtype) +
                    (fp8 ? "" : ", packed or no number") + "; " + name_of(code_) + " packs floating-point weights" +
                    (fp8 ? "; this file is for fp8_w8a8 or fp8_weight_only" : ""),
                "MODEL_SCALES");
  }

  Code code_;
  eight_bits::ExcludedLayers excluded_;
  std::shared_ptr<w8a8::Shared> shared_;
};

template <Code code>
std::unique_ptr<MemoryStrategy> make(const Options& options) {
  return std::make_unique<W8A8>(code, options);
}

void init(Registrar& registrar) {
  registrar.add(MemoryComponent{name_of(Code::e4m3), make<Code::e4m3>});
  registrar.add(MemoryComponent{name_of(Code::int8), make<Code::int8>});
}

}  // namespace

TRAINER_PLUGIN("w8a8", "0.1.0", init)
