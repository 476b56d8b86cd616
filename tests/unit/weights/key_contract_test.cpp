#include <gtest/gtest.h>
#include <weights/key_contract.hpp>

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

TEST(KeyContract, AcceptsWhatFits) {
  EXPECT_NO_THROW(check_key_contract("m", kModel, kFile));
  EXPECT_NO_THROW(check_key_contract("m", {}, {}));
  std::vector<NamedShape> with_vision = kFile;
  with_vision.push_back({"vision_tower.x", {1}, "F32"});
  EXPECT_NO_THROW(check_key_contract("m", kModel, with_vision, {.ignored_prefixes = {"other.", "vision_tower."}}));
}

TEST(KeyContract, NamesMissingUnexpectedShapeAndDtype) {
  std::vector<NamedShape> found = kFile;
  found[0].name = "a.wieght";
  EXPECT_EQ(refusal(found),
            "m.safetensors: the tensors do not fit the model\n"
            "  1 missing:\n    \"a.weight\" [4, 2] (did you mean \"a.wieght\"?)\n"
            "  1 unexpected:\n    \"a.wieght\"\n"
            "  is this the right file, and the right variant in the recipe?");
  found = kFile;
  found[1].shape = {5};
  EXPECT_NE(refusal(found).find("1 of the wrong shape:\n    \"a.bias\": the model needs [4], the file has [5]"),
            std::string::npos);
  found = kFile;
  found[2].dtype = "F32";
  EXPECT_NE(refusal(found).find("1 of the wrong dtype:\n    \"b.weight\": the model needs BF16, the file has F32"),
            std::string::npos);
  found = kFile;
  found.push_back({"lora_unet_x.alpha", {}, "F32"});
  EXPECT_NE(refusal(found, {.ignored_prefixes = {"vision_tower."}}).find("1 unexpected:\n    \"lora_unet_x.alpha\""),
            std::string::npos);
}

TEST(KeyContract, NothingFitsIsAnError) {
  std::vector<NamedShape> found;
  for (int i = 0; i < 50; ++i) found.push_back({"lora_unet_" + std::to_string(i), {1}, "F32"});
  const std::string message = refusal(found);
  EXPECT_NE(message.find("3 missing"), std::string::npos) << message;
  EXPECT_NE(message.find("50 unexpected"), std::string::npos) << message;
  EXPECT_NE(message.find("\n    ...\n"), std::string::npos) << message;
  EXPECT_NE(refusal({}).find("3 missing"), std::string::npos);
}

}  // namespace
}  // namespace trainer::weights
