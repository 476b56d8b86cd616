#include <gtest/gtest.h>
#include <trainer/sdk/key_contract.hpp>

#include "helpers.hpp"

namespace trainer::weights {
namespace {

const std::vector<NamedShape> kModel = {{"a.weight", {4, 2}, ""}, {"a.bias", {4}, ""}, {"b.weight", {3, 4}, "BF16"}};
const std::vector<NamedShape> kFile = {
    {"a.weight", {4, 2}, "F32"}, {"a.bias", {4}, "F32"}, {"b.weight", {3, 4}, "BF16"}};

std::string refusal(std::vector<NamedShape> found, const ContractOptions& options = {}) {
  const Error error = error_of([&] { check_key_contract("m.safetensors", kModel, found, options); });
  EXPECT_EQ(error.code(), "MODEL_KEYS");
  EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
  return error.what();
}

bool of_vision_tower(std::string_view name) { return name.starts_with("vision_tower."); }

TEST(KeyContract, AcceptsWhatFits) {
  EXPECT_NO_THROW(check_key_contract("m", kModel, kFile));
  EXPECT_NO_THROW(check_key_contract("m", {}, {}));
  std::vector<NamedShape> with_vision = kFile;
  with_vision.push_back({"vision_tower.x", {1}, "F32"});
  EXPECT_NO_THROW(check_key_contract("m", kModel, with_vision, {.ignored = of_vision_tower}));
}

TEST(KeyContract, NamesMissingUnexpectedShapeAndDtypeAtOnce) {
  std::vector<NamedShape> found = kFile;
  found[0].name = "a.wieght";
  found[1].shape = {5};
  found[2].dtype = "F32";
  found.push_back({"lora_unet_x.alpha", {}, "F32"});
  found.push_back({"vision_tower.weight", {1}, "F32"});
  EXPECT_EQ(refusal(found, {.ignored = of_vision_tower}),
            "m.safetensors: the tensors do not fit the model\n"
            "  1 missing:\n    \"a.weight\" [4, 2] (did you mean \"a.wieght\"?)\n"
            "  2 unexpected, which the model would leave out:\n"
            "    \"a.wieght\" [4, 2] (did you mean \"a.weight\"?)\n"
            "    \"lora_unet_x.alpha\" []\n"
            "  1 of the wrong shape:\n    \"a.bias\": the model needs [4], the file has [5]\n"
            "  1 of the wrong dtype:\n    \"b.weight\": the model needs BF16, the file has F32\n"
            "  is this the right file, and the right variant in the recipe?");
}

TEST(KeyContract, SpeaksOfTheModelInTheWordsGiven) {
  const std::vector<NamedShape> found(kFile.begin(), kFile.end() - 1);
  EXPECT_EQ(refusal(found, {.model = "the autoencoder", .advice = "is the file complete?"}),
            "m.safetensors: the tensors do not fit the autoencoder\n  1 missing:\n    \"b.weight\" [3, 4]\n"
            "  is the file complete?");
}

TEST(KeyContract, NothingFitsIsAnError) {
  std::vector<NamedShape> found;
  for (int i = 0; i < 50; ++i) found.push_back({"lora_unet_" + std::to_string(i), {1}, "F32"});
  const std::string message = refusal(found);
  EXPECT_NE(message.find("3 missing"), std::string::npos) << message;
  EXPECT_NE(message.find("50 unexpected"), std::string::npos) << message;
  EXPECT_NE(message.find("\"lora_unet_26\" [1]\n    and 30 more\n"), std::string::npos) << message;
  EXPECT_NE(refusal({}).find("3 missing"), std::string::npos);
}

/// A suggestion is a comparison with every candidate: a long list gets them for its first names only.
TEST(KeyContract, SuggestsForTheFirstNamesOnly) {
  std::vector<NamedShape> found;
  std::vector<NamedShape> expected;
  for (int i = 10; i < 20; ++i) {
    expected.push_back({"layer." + std::to_string(i), {1}});
    found.push_back({"laier." + std::to_string(i), {1}});
  }
  const std::string message = error_of([&] { check_key_contract("m", expected, found); }).what();
  EXPECT_NE(message.find("\"layer.17\" [1] (did you mean \"laier.17\"?)\n    \"layer.18\" [1]\n"), std::string::npos)
      << message;
}

}  // namespace
}  // namespace trainer::weights
