/// @file A text encoder without weights: a text is its bytes.
#include <ATen/ops/full.h>

#include "parts.hpp"

namespace toy_lm {
namespace {

using namespace trainer;

class Bytes final : public TextEncoder {
 public:
  explicit Bytes(const Options& options) : length_(options.get<int64_t>("length")) {}

  std::vector<NamedTensors> encode(std::span<const std::string> captions) override {
    std::vector<NamedTensors> result;
    for (const std::string& caption : captions) {
      at::Tensor tokens = at::full({length_}, kEnd, at::TensorOptions(at::kLong));
      auto* ids = tokens.mutable_data_ptr<int64_t>();
      for (int64_t i = 0; i + 2 < length_ && i < static_cast<int64_t>(caption.size()); ++i)
        ids[i + 1] = static_cast<unsigned char>(caption[static_cast<std::size_t>(i)]);
      result.push_back({{"tokens", tokens}});
    }
    return result;
  }
  [[nodiscard]] std::string identity() const override { return "bytes 1"; }
  [[nodiscard]] std::string describe() const override {
    return "the bytes of a text, the first " + std::to_string(length_ - 2);
  }

 private:
  int64_t length_;
};

}  // namespace

std::unique_ptr<TextEncoder> make_bytes(const EncoderContext& context) {
  return std::make_unique<Bytes>(context.options);
}

}  // namespace toy_lm
