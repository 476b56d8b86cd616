// Bytes as what somebody's LoRA file says of itself: peft's configuration, in the file and beside it, and the two texts
// that our own files state.
#include <adapter/lora_stated.hpp>

#include <cmath>
#include <cstdint>
#include <string>

#include "target.hpp"
#include "temp_file.hpp"

namespace {

using namespace trainer;

const std::string kPeftPrefix = "base_model.model.";

void use(const adapter::StatedScales& stated, const std::string& prefix) {
  const adapter::LoraTarget targets[] = {
      {prefix, "a", {"a"}},
      {prefix, "blocks.0.attn.to_q", {"blocks.0.attn.to_q"}},
      {prefix, "double_blocks.0.img_attn.qkv", {"blocks.0.attn.to_q", "blocks.0.attn.to_k", "blocks.0.attn.to_v"}},
  };
  for (const adapter::LoraTarget& target : targets)
    for (const int64_t rank : {1, 4, 16})
      fuzz::run_one([&] {
        const double alpha = stated.alpha(target, rank);
        fuzz::require(std::isfinite(alpha) && alpha > 0, "an alpha is a number above 0");
        fuzz::require(!stated.source().empty() || alpha == static_cast<double>(rank), "without a word it is the rank");
        stated.require_same(target, rank, alpha);
      });
}

void parse(std::string_view bytes) {
  static const fuzz::TempFolder temp;
  const std::string text(bytes);
  const std::filesystem::path file = temp.path() / "lora.safetensors";
  for (const std::string& prefix : {std::string("transformer."), kPeftPrefix, std::string()})
    fuzz::run_one([&] { use({file, {{adapter::kPeftMetadata, text}}, prefix}, prefix); });
  temp.write("adapter_config.json", bytes);
  fuzz::run_one([&] { use({file, {}, kPeftPrefix}, kPeftPrefix); });
  const adapter::Metadata ours{{"software", "trainer"}, {adapter::kFoldedScale, text}, {"step", text}};
  if (const auto step = adapter::stated_step(ours)) fuzz::require(*step >= 0, "a step is none below 0");
  if (const auto scale = adapter::stated_folded_scale(file, ours))
    fuzz::require(std::isfinite(*scale) && *scale > 0, "a scale is a number above 0");
}

}  // namespace
TRAINER_FUZZ_TARGET("lora_metadata", parse);
