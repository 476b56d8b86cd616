/// @file Which kind of adapter a file belongs to, and files of adapters that are no LoRA under other programs' names.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <adapter/adapter_file.hpp>
#include <limits>
#include <trainer/sdk/error.hpp>

#include "lora_fixture.hpp"

namespace trainer::adapter {
namespace {

const std::string kLayer = "transformer.transformer_blocks.0.attn.to_q.";

const std::vector<AdapterKind> kKinds{{"lora", {"lora_A.weight", "lora_B.weight", "alpha"}},
                                      {"pairs", {"lora_A.weight", "lora_B.weight"}},
                                      {"dora", {"lora_A.weight", "lora_B.weight", "lora_magnitude_vector"}},
                                      {"all", {"lora_A.weight", "lora_B.weight", "lora_magnitude_vector", "m"}},
                                      {"shift", {"shift"}}};

class Kinds : public LoraFiles {
 protected:
  weights::TensorFile file(const std::vector<std::string>& ends,
                           const std::map<std::string, std::string>& metadata = {}) {
    NamedTensors tensors;
    for (const std::string& end : ends) tensors[kLayer + end] = at::ones({2, 2}, at::kFloat);
    return weights::TensorFile(raw(tensors, metadata), {weights::Profile::compat, weights::ReadMode::copy});
  }
  std::string kind(const std::vector<std::string>& ends, const std::map<std::string, std::string>& metadata = {}) {
    const AdapterKind* found = kind_of(file(ends, metadata), kKinds);
    return found == nullptr ? "none" : found->name;
  }
};

TEST_F(Kinds, AreToldByTheEndsOfNames) {
  EXPECT_EQ(kind({"lora_A.weight", "lora_B.weight"}), "lora") << "the first, not the one that lists the fewest";
  EXPECT_EQ(kind({"lora_down.weight", "lora_up.weight", "alpha"}), "lora") << "in any spelling";
  EXPECT_EQ(kind({"lora_A.weight", "lora_B.weight", "lora_magnitude_vector"}), "dora");
  EXPECT_EQ(kind({"lora_A.weight", "m"}), "all");
  EXPECT_EQ(kind({"shift"}), "shift");
  EXPECT_EQ(kind({"shift", "other"}), "none");
  EXPECT_EQ(kind({"lora_A.weight", "lora_B.weight"}, {{"trainer.adapter", "dora"}}), "dora") << "it says so";
  EXPECT_EQ(kind({"shift"}, {{"trainer.adapter", "elsewhere"}}), "none");
  EXPECT_TRUE(is_adapter(file({"shift", "other"}, {{"trainer.adapter", "elsewhere"}}), kKinds));
  EXPECT_TRUE(is_adapter(file({"lokr_w1"}), kKinds)) << "known by name, though nobody reads it";
  EXPECT_FALSE(is_adapter(file({"weight"}), kKinds));
}

TEST_F(Kinds, ReadsThePartsOfALayerUnderItsCanonicalName) {
  NamedTensors tensors;
  for (const char* name :
       {"lycoris_transformer_blocks_0_attn_to_q.shift", "lycoris_transformer_blocks_1_attn_to_q.shift"})
    tensors[name] = at::full({4}, 2.5, at::kFloat);
  const weights::TensorFile file(raw(tensors, {{"note", "theirs"}}),
                                 {weights::Profile::compat, weights::ReadMode::copy});
  const ReadAdapter read = read_adapter(file, family_, &kKinds.back());
  EXPECT_EQ(read.layers(),
            (std::vector<std::string>{"transformer_blocks.0.attn.to_q", "transformer_blocks.1.attn.to_q"}));
  EXPECT_EQ(read.kind, "shift");
  EXPECT_EQ(read.format, "other");
  EXPECT_EQ(read.file.metadata.at("note"), "theirs");
  EXPECT_EQ(read.file.layers.at("transformer_blocks.0.attn.to_q").at("shift").numel(), 4);
  EXPECT_FALSE(lora_of(read.file).has_value());
}

TEST_F(Kinds, RefusesWhatIsNoPartOrHasNoLayer) {
  const auto refusal = [&](const NamedTensors& tensors) {
    const weights::TensorFile file(raw(tensors), {weights::Profile::compat, weights::ReadMode::copy});
    try {
      read_adapter(file, family_, &kKinds.back());
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
      return error.code() + ": " + error.what();
    }
    return std::string("accepted");
  };
  const at::Tensor some = at::ones({4}, at::kFloat);
  EXPECT_NE(refusal({{kLayer + "other", some}}).find("is no tensor of this adapter"), std::string::npos);
  const std::string near = refusal({{"transformer.transformer_blocks.0.attn.to_x.shift", some}});
  EXPECT_TRUE(near.starts_with("LORA_KEYS: ")) << near;
  EXPECT_NE(near.find("belongs to no layer of FLUX.2 (did you mean"), std::string::npos) << near;
  EXPECT_NE(refusal({{"diffusion_model.double_blocks.0.img_attn.qkv.shift", some}}).find("only LoRA is read"),
            std::string::npos);
  EXPECT_TRUE(refusal({{kLayer + "shift", at::full({4}, std::numeric_limits<float>::infinity(), at::kFloat)}})
                  .starts_with("LORA_NONFINITE: "));
}

}  // namespace
}  // namespace trainer::adapter
