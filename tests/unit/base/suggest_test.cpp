#include <gtest/gtest.h>
#include <base/printable.hpp>
#include <base/utf8.hpp>
#include <nlohmann/json.hpp>
#include <trainer/sdk/names.hpp>

namespace trainer {
namespace {

using Names = std::vector<std::string>;

TEST(Suggest, OrdersByDistance) {
  const Names valid = {"rank", "alpha", "targets", "tank", "bank"};
  EXPECT_EQ(nearest_names("ranks", valid), (Names{"rank", "tank", "bank"}));
  EXPECT_EQ(nearest_names("ranks", valid, 1), Names{"rank"});
  EXPECT_EQ(nearest_names("rnak", valid), Names{"rank"}) << "short names: one edit";
  EXPECT_EQ(nearest_names("Alhpa", valid), Names{"alpha"});
}

TEST(Suggest, LeavesOutWhatIsFar) {
  const Names valid = {"weight_decay", "lr", "eps"};
  EXPECT_EQ(nearest_names("wieght_dcay", valid), Names{"weight_decay"});
  EXPECT_EQ(nearest_names("xy", valid), Names{});  // two edits of two letters have nothing in common
  EXPECT_EQ(nearest_names("checkpoint", valid), Names{});
  EXPECT_EQ(nearest_names("cosin", Names{"cosine_restarts", "cosine"}), Names{"cosine"}) << "3 edits farther";
}

TEST(Suggest, ComparesTheLastDottedPart) {
  const Names valid = {"optimizer.lr", "train.batch_size", "adapter.rank"};
  EXPECT_EQ(nearest_names("train.lr", valid), Names{"optimizer.lr"});
  EXPECT_EQ(nearest_names("rnak", valid), Names{"adapter.rank"});
}

TEST(Suggest, SiblingsAreComparedByTheirOwnPart) {
  const Names valid = {"adapter.alpha", "adapter.dtype", "adapter.rank"};
  EXPECT_EQ(nearest_names("adapter.alhpa", valid), Names{"adapter.alpha"});
}

TEST(Suggest, FindsNamesThatGoOn) {
  EXPECT_EQ(nearest_names("batch", Names{"steps", "batch_size"}), Names{"batch_size"});
  EXPECT_EQ(nearest_names("ba", Names{"batch_size"}), Names{});
}

TEST(Suggest, Sentence) {
  EXPECT_EQ(did_you_mean("kran", Names{"lr"}), "");
  EXPECT_EQ(did_you_mean("rnk", Names{"rank"}), " (did you mean \"rank\"?)");
  EXPECT_EQ(did_you_mean("rank", Names{"tank", "bank"}), " (did you mean \"tank\" or \"bank\"?)");
  EXPECT_EQ(did_you_mean("rank", Names{"tank", "bank", "sank", "dank"}),
            " (did you mean \"tank\", \"bank\" or \"sank\"?)");
}

TEST(Suggest, ComparesWhatDiffersBetweenTensorNames) {
  const Names found = {"blocks.1.attn.to_v.weight", "blocks.0.attn.to_V.weight", "lora.weight", "text.embed.weight"};
  EXPECT_EQ(did_you_mean_tensor("blocks.0.attn.to_v.weight", found), " (did you mean \"blocks.0.attn.to_V.weight\"?)");
  EXPECT_EQ(did_you_mean_tensor("blocks.0.atn.to_v.weight", found), " (did you mean \"blocks.0.attn.to_V.weight\"?)");
  EXPECT_EQ(did_you_mean_tensor("x_embedder.weight", found), "") << "\"weight\" alone is no likeness";
  EXPECT_EQ(did_you_mean_tensor("blocks.1.attn.out.weight", found), "") << "nor is a path in common";
  EXPECT_EQ(did_you_mean_tensor("blocks.1.attn.to_v.weight_scale", found),
            " (did you mean \"blocks.1.attn.to_v.weight\"?)");
  EXPECT_EQ(did_you_mean_tensor("embed.weight", found), " (did you mean \"text.embed.weight\"?)");
  EXPECT_EQ(did_you_mean_tensor("model.lora.weight", found), " (did you mean \"lora.weight\"?)");
  EXPECT_EQ(did_you_mean_tensor("weight", found), "");
  EXPECT_EQ(did_you_mean_tensor("", found), "");
}

TEST(MessageParts, QuotesNamesAndShapes) {
  EXPECT_EQ(quote_name("a.weight"), "\"a.weight\"");
  EXPECT_EQ(quote_name(std::string_view("a\n\0\x7F", 4)), "\"a\\x0a\\x00\\x7f\"");
  EXPECT_EQ(quote_name("a\u009b2J\u00a0\u00e9"), "\"a\\xc2\\x9b2J\u00a0\u00e9\"") << "a C1 control";
  EXPECT_EQ(quote_name(std::string(119, 'a') + "\u00e9b"), '"' + std::string(119, 'a') + "...\"") << "no half letters";
  EXPECT_EQ(shape_text(std::vector<int64_t>{2, 3}), "[2, 3]");
  EXPECT_EQ(shape_text({}), "[]");
}

TEST(MessageParts, NothingInAFileMovesTheCursor) {
  EXPECT_EQ(printable("a \u00e9 \u4e2d \U0001f600"), "a \u00e9 \u4e2d \U0001f600");
  EXPECT_EQ(printable("\x1b[2J\n\r\x7f"), "\\x1b[2J\\x0a\\x0d\\x7f");
  EXPECT_EQ(printable("\u009b2J"), "\\xc2\\x9b2J");
  EXPECT_EQ(printable("\x9b\xff\xc3"), "\\x9b\\xff\\xc3") << "no UTF-8";
  EXPECT_EQ(printable("\xe0\x82\x9b"), "\\xe0\\x82\\x9b") << "overlong";
  EXPECT_EQ(printable("\u202egpj"), "\\xe2\\x80\\xaegpj");
  EXPECT_EQ(printable("\xed\xa0\x80\xf4\x90\x80\x80"), "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80") << "no letters";
  EXPECT_EQ(printable_lines("a\n\tb\x1b[2J\r\xff"), "a\n\tb\\x1b[2J\\x0d\\xff");
}

TEST(MessageParts, Utf8IsWhatJsonTakes) {
  for (const char* text : {"", "a\n", "\u00e9 \u4e2d \U0001f600", "\ud7ff\ue000\U0010ffff"}) EXPECT_TRUE(is_utf8(text));
  for (const char* text : {"a\xff", "\xc3", "\xe0\x82\x9b", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"})
    EXPECT_FALSE(is_utf8(text)) << printable(text);
}

TEST(MessageParts, JsonOnStdoutIsAscii) {
  EXPECT_EQ(printable_json(nlohmann::json{{"a", "\u009b\xff\x7f"}}), "{\n  \"a\": \"\\u009b\\ufffd\\u007f\"\n}");
}

TEST(Suggest, TakesHugeNames) { EXPECT_EQ(did_you_mean(std::string(100'000, 'a'), Names{"a"}), ""); }

}  // namespace
}  // namespace trainer
