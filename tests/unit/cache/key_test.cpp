#include <cache/key.hpp>

#include <gtest/gtest.h>

#include <set>

namespace trainer::cache {
namespace {

EncoderIdentity identity() { return {"mistral", "0.1.0", "weights", "tokenizer", "options", "bf16"}; }

TEST(Key, EveryInputCounts) {
  std::set<std::string> keys = {text_key(identity(), "a fox"), latents_key(identity(), "0123", {64, 64})};
  const auto both = [&](const EncoderIdentity& changed) {
    EXPECT_TRUE(keys.insert(text_key(changed, "a fox")).second);
    EXPECT_TRUE(keys.insert(latents_key(changed, "0123", {64, 64})).second);
  };
  for (std::string EncoderIdentity::*field :
       {&EncoderIdentity::name, &EncoderIdentity::component, &EncoderIdentity::weights, &EncoderIdentity::tokenizer,
        &EncoderIdentity::options, &EncoderIdentity::dtype}) {
    EncoderIdentity changed = identity();
    changed.*field += "2";
    both(changed);
  }
  // What stands in one field cannot pass for what stands in the next.
  EncoderIdentity moved = identity();
  moved.weights = "weightstokenizer";
  moved.tokenizer = "";
  both(moved);
  EXPECT_TRUE(keys.insert(text_key(identity(), "a fox ")).second);
  EXPECT_TRUE(keys.insert(text_key(identity(), "")).second);
  EXPECT_TRUE(keys.insert(latents_key(identity(), "0124", {64, 64})).second);
  EXPECT_TRUE(keys.insert(latents_key(identity(), "0123", {64, 80})).second);
  EXPECT_TRUE(keys.insert(latents_key(identity(), "0123", {80, 64})).second);
  EXPECT_EQ(text_key(identity(), "a fox"), text_key(identity(), "a fox"));
  EXPECT_EQ(keys.size(), 2U + 12 + 2 + 5);
}

TEST(Key, StaysTheSameFromReleaseToRelease) {
  // A change here makes every user's cache useless: only on purpose.
  EXPECT_EQ(text_key(identity(), "a fox"), "1327ef313e3b0ca9ed22122e91e74737");
  EXPECT_EQ(latents_key(identity(), "0123", {64, 48}), "31e46c417c73471b11595308d59ca2bb");
}

}  // namespace
}  // namespace trainer::cache
