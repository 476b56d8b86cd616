#include "fixture.hpp"

#include <recipe/write.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace trainer::recipe {
namespace {

std::string text_of(const std::vector<Difference>& differences) {
  std::string out;
  for (const Difference& d : differences) out += d.key + ": " + d.first + " | " + d.second + "\n";
  return out;
}

class WriteTest : public RecipeTest {
 protected:
  /// The resolved text loads, from another folder and from memory, to the same recipe, and is a fixed point.
  void expect_fixed_point(const Recipe& recipe) {
    const std::string text = to_toml(recipe);
    write("elsewhere/resolved.toml", text);
    std::filesystem::current_path("elsewhere");
    const Recipe again = load_file("resolved.toml");
    std::filesystem::current_path("..");
    EXPECT_EQ(text_of(differences(recipe, again)), "");
    EXPECT_EQ(to_toml(again), text);
    const Recipe stored = load_stored(text, "stored", test_components());
    EXPECT_EQ(text_of(differences(recipe, stored)), "");
    EXPECT_EQ(stored.file, "stored");
  }
};

TEST_F(WriteTest, DefaultsAreAFixedPoint) { expect_fixed_point(load_text(kMinimal)); }

TEST_F(WriteTest, EveryKindOfValueIsAFixedPoint) {
  setenv("TRAINER_DATA", "/odd $${HOME} \"path\"", 1);
  expect_fixed_point(load_text(
      kMinimal,
      {"adapter.rank=7", "adapter.targets=[\"a*\", \"b\\\\\\\"\"]", "placement.kind=split",
       "placement.devices=[\"cuda:0\", \"cuda:1\"]", "placement.balance=[3, 4]", "memory.budget=\"24GiB\"",
       "objective.timesteps.shift=2.22554", "sample.prompts=[\"line\\nbreak\\ttab \\u001f \\\"q\\\" \xc3\xa9\", \"\"]",
       "sample.seeds=[1, 2]", "data.0.folder=${TRAINER_DATA}/x", "data.0.resolution=[64, 128]",
       "optimizer.lr=1.0000000000000002e-7", "train.ema.decay=0.9999", "metrics.tensorboard=false"}));
  expect_fixed_point(load_text(kMinimal, {"memory.strategies=[\"selective_checkpointing\", \"fp8_weight_only\"]",
                                          "memory.fp8_weight_only.table=t", "memory.budget=0B"}));
}

TEST_F(WriteTest, PathsAsWritten) {
  setenv("TRAINER_MODELS", "/secret", 1);
  const Recipe recipe = load_text(
      kMinimal,
      {"model.path=${TRAINER_MODELS}/m", "memory.strategies=[\"fp8_weight_only\"]", "memory.fp8_weight_only.table=t"});
  const std::string text = to_toml(recipe, PathStyle::as_written);
  EXPECT_EQ(text.find("/secret"), std::string::npos);
  EXPECT_EQ(text.find(here("")), std::string::npos);
  EXPECT_NE(text.find("[model]\nkind = \"flux2\"\npath = \"${TRAINER_MODELS}/m\"\n"), std::string::npos) << text;
  EXPECT_NE(text.find("[memory.fp8_weight_only]\ntable = \"t\"\n"), std::string::npos) << text;
  const Recipe again = load_text(text);
  EXPECT_EQ(text_of(differences(recipe, again)), "");
}

/// A valid value of the option other than its default, as TOML.
std::vector<std::string> other_values(const OptionSpec& spec) {
  std::vector<std::string> values;
  for (const std::string& choice : spec.choices) values.push_back(in_quotes(choice));
  if ((spec.type & kBool) != 0) values.insert(values.end(), {"true", "false"});
  const int64_t multiple = std::max<int64_t>(1, spec.multiple_of);
  const auto low = static_cast<int64_t>(spec.min.value_or(spec.above.value_or(0) + 1));
  const std::string integer = std::to_string((low / multiple + 3) * multiple);
  if ((spec.type & kInt) != 0) values.push_back(integer);
  const double above = spec.min.value_or(spec.above.value_or(0.0));
  const std::string number = number_text(spec.max ? above + (*spec.max - above) / 4 : above + 0.125);
  if ((spec.type & kFloat) != 0) values.push_back(number);
  if ((spec.type & kString) != 0 && spec.choices.empty()) values.push_back("\"cpu\"");
  if ((spec.type & kPath) != 0) values.push_back("\"/some/file.csv\"");
  if ((spec.type & kBytes) != 0) values.push_back("\"3MB\"");
  if ((spec.type & kIntList) != 0) values.push_back("[" + integer + ", " + integer + "]");
  if ((spec.type & kFloatList) != 0) values.push_back("[" + number + ", " + number + "]");
  if ((spec.type & kStringList) != 0 && spec.choices.empty()) values.push_back("[\"cpu\", \"cuda:1\"]");
  return values;
}

/// Every key of the schema takes the value it is given, and the resolved recipe shows it.
TEST_F(WriteTest, NoGivenValueIsReplacedByADefault) {
  const auto components = test_components();
  write("recipe.toml", kMinimal);
  std::size_t tried = 0;
  const auto attempt = [&](const std::string& key, const OptionSpec& spec) {
    for (const std::string& value : other_values(spec)) {
      std::vector<std::string> overrides = {"train.batch_size=1000000", key + "=" + value};
      if (key == "optimizer.fused_backward")
        overrides.insert(overrides.begin(), {"train.max_grad_norm=0", "train.micro_batch_size=1000000"});
      if (key == "memory.strategies") overrides.back() = key + "=[\"full_checkpointing\"]";
      // These need each other.
      if (key == "placement.simulated") {
        if (value.starts_with("[")) continue;  // names of devices are no amounts
        overrides.insert(overrides.begin(), "placement.devices=\"sim:0\"");
        overrides.back() = key + "=\"3MB\"";
      }
      if (key == "checkpoint.keep_every") overrides.emplace(overrides.begin(), "checkpoint.every=1");
      if (key == "adapter.path") overrides.insert(overrides.begin(), "adapter.init=\"file\"");
      if (key == "adapter.init" && value == "\"file\"")
        overrides.insert(overrides.begin(), "adapter.path=\"/some/lora\"");
      // Alone it would leave nothing to train on.
      if (key == "data.0.validation") write("recipe.toml", std::string(kMinimal) + "\n[[data]]\nfolder = \"more\"\n");
      if (key.starts_with("validation.") && key != "validation.fraction")
        overrides.insert(overrides.begin(), "validation.fraction=0.5");
      if (key.starts_with("data.0.metadata") && value.find(".csv") == std::string::npos) continue;
      const Recipe recipe = load(std::string("recipe.toml"), overrides, components, {.paths_must_exist = false});
      const auto flat = flatten(recipe);
      const std::string wanted = overrides.back().substr(key.size() + 1);
      const auto found = std::find_if(flat.begin(), flat.end(), [&](const auto& item) { return item.first == key; });
      ASSERT_NE(found, flat.end()) << overrides.back();
      EXPECT_EQ(found->second, wanted) << key;
      ++tried;
    }
  };
  for (const SectionSchema& section : sections()) {
    for (const OptionSpec& option : section.options) {
      if (option.key == "kind") continue;
      attempt((section.repeated ? section.name + ".0." : section.name + ".") + option.key, option);
    }
  }
  for (const ComponentSchema& component : components) {
    if (component.kind != "adapter" && component.kind != "objective") continue;
    for (const OptionSpec& option : component.options) attempt(component.kind + "." + option.key, option);
  }
  EXPECT_GT(tried, 80U);
}

TEST_F(WriteTest, Differences) {
  const Recipe first = load_text(kMinimal, {"optimizer.lr=1e-3", "adapter.rank=4"});
  const Recipe second = load_text(kMinimal, {"optimizer.lr=2e-3", "run.steps=5"});
  EXPECT_EQ(text_of(differences(first, first)), "");
  EXPECT_EQ(text_of(differences(first, second)),
            "run.steps: 1000 | 5\nadapter.kind: \"lora\" | \nadapter.alpha: 4.0 | \nadapter.dtype: \"fp32\" | \n"
            "adapter.init: \"kaiming\" | \nadapter.rank: 4 | \nadapter.targets: \"default\" | \noptimizer.lr: 0.001 | "
            "0.002\n");
  EXPECT_EQ(text_of(differences(second, first)).substr(0, 22), "run.steps: 5 | 1000\nop");
}

TEST(Write, Numbers) {
  EXPECT_EQ(number_text(1e-4), "1e-4");
  EXPECT_EQ(number_text(0.001), "0.001");
  EXPECT_EQ(number_text(3), "3.0");
  EXPECT_EQ(number_text(-0.0), "-0.0");
  EXPECT_EQ(number_text(1e300), "1e300");
  EXPECT_EQ(number_text(1.5e-100), "1.5e-100");
  EXPECT_EQ(number_text(std::nan("")), "nan");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(bytes_text(22'000'000'000), "22GB");
  EXPECT_EQ(bytes_text(int64_t{24} << 30), "24GiB");
  EXPECT_EQ(bytes_text(1234), "1234B");
  EXPECT_EQ(in_quotes("a\"\\\n\x01"), R"("a\"\\\n\u0001")");
  EXPECT_EQ(toml_key("a.b-1"), "a.b-1");
  EXPECT_EQ(toml_key("a b"), "\"a b\"");
}

}  // namespace
}  // namespace trainer::recipe
