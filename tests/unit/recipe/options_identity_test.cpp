#include <gtest/gtest.h>
#include <recipe/options_identity.hpp>

#include <set>

namespace trainer::recipe {
namespace {

Value list(std::vector<int64_t> items) {
  Array array;
  for (const int64_t item : items) array.push_back({item});
  return {array};
}

std::string identity(Table values, std::vector<OptionSpec> specs = {}, const std::string& name = "mistral",
                     const std::string& kind = "text_encoder") {
  return options_identity({kind, std::move(values)}, {name, kind, "", std::move(specs)});
}

OptionSpec spec(std::string key, Value fallback) { return {.key = std::move(key), .fallback = std::move(fallback)}; }

TEST(OptionsIdentity, DependsOnNamesTypesAndValues) {
  std::set<std::string> identities;
  for (const Table& table :
       {Table{}, Table{{"a", {}}}, Table{{"a", {int64_t{1}}}}, Table{{"a", {1.0}}}, Table{{"a", {true}}},
        Table{{"a", {std::string("1")}}}, Table{{"b", {int64_t{1}}}}, Table{{"a", list({10, 20})}},
        Table{{"a", list({20, 10})}}, Table{{"a", list({10, 20, 30})}}, Table{{"a", {Table{{"b", {int64_t{1}}}}}}},
        Table{{"a", {int64_t{1}}}, {"b", {int64_t{1}}}}}) {
    EXPECT_TRUE(identities.insert(identity(table)).second) << identities.size();
  }
  EXPECT_EQ(identity({{"a", list({10, 20})}}), identity({{"a", list({10, 20})}}));
}

TEST(OptionsIdentity, AnOptionThatCameLaterIsItsDefault) {
  const OptionSpec tokens = spec("max_tokens", {int64_t{512}}), later = spec("later", {true});
  const OptionSpec unset = spec("unset", {});
  OptionSpec same = spec("same", {});
  same.same_as = "max_tokens";
  const Value given{int64_t{32}};
  const std::string before = identity({{"max_tokens", given}}, {tokens});
  const auto now = [&](Value one, Value two, Value three) {
    return identity(
        {{"max_tokens", given}, {"later", std::move(one)}, {"unset", std::move(two)}, {"same", std::move(three)}},
        {tokens, later, unset, same});
  };
  EXPECT_EQ(now({true}, {}, given), before);
  EXPECT_NE(now({false}, {}, given), before);
  EXPECT_NE(now({true}, {int64_t{1}}, given), before);
  EXPECT_NE(now({true}, {}, {int64_t{33}}), before);
}

TEST(OptionsIdentity, ADefaultCountsForTheFirstComponentsAlone) {
  const Value given{int64_t{512}};
  const OptionSpec tokens = spec("max_tokens", given);
  EXPECT_NE(identity({{"max_tokens", given}}, {tokens}), identity({}));
  EXPECT_EQ(identity({{"max_tokens", given}}, {tokens}, "bytes"), identity({}));
  EXPECT_EQ(identity({{"max_tokens", given}}, {tokens}, "mistral", "memory"), identity({}));
}

TEST(OptionsIdentity, OfAllOptionsIsWhatTheFirstVersionsRecorded) {
  const Value given{int64_t{64}};
  const Options options("text_encoder", Table{{"length", given}});
  EXPECT_EQ(identity_of_all(options), identity({{"length", given}}));
  EXPECT_NE(identity_of_all(options), identity({{"length", given}}, {spec("length", given)}, "bytes"));
}

TEST(OptionsIdentity, StaysTheSameFromReleaseToRelease) {
  // As the checkpoint in tests/data/old_run records fp8_weight_only with its defaults. A change here refuses the runs
  // of every encoder and weight format: only on purpose.
  Array exclude;
  for (const char* name : {"*embed*", "*modulation*", "norm_out*", "proj_out*", "*time*"})
    exclude.push_back({std::string(name)});
  const Value channel{std::string("channel")}, none{std::string("none")};
  EXPECT_EQ(identity({{"exclude", {exclude}}, {"granularity", channel}, {"keep", none}},
                     {spec("exclude", {exclude}), spec("granularity", channel), spec("keep", none)}, "fp8_weight_only",
                     "memory"),
            "f7dbfda23f179de6cbf5c8e424390b4f");
}

}  // namespace
}  // namespace trainer::recipe
