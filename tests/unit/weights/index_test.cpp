#include <gtest/gtest.h>
#include <weights/shard_index.hpp>

#include "corpus.hpp"
#include "helpers.hpp"

namespace trainer::weights {
namespace {

namespace fs = std::filesystem;
using corpus::entry;

std::string map_of(const std::string& entries) { return "{\"weight_map\":{" + entries + "}}"; }

struct Bad {
  std::string label, text, code, piece;
};

std::vector<Bad> bad_indices() {
  std::string crowd;
  for (int i = 0; i <= 10'000; ++i)
    crowd += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"" + std::to_string(i) + ".safetensors\"";
  const auto shard = [](const std::string& name) { return map_of("\"a\":\"" + name + "\""); };
  return {
      {"empty", "", "IDX_SHAPE", "not JSON at byte"},
      {"a list", "[]", "IDX_SHAPE", "must be a JSON object"},
      {"a number", "7", "IDX_SHAPE", "must be a JSON object"},
      {"no map", "{\"metadata\":{}}", "IDX_SHAPE", "it has no \"weight_map\""},
      {"empty map", map_of(""), "IDX_SHAPE", "its \"weight_map\" is empty"},
      {"map is a list", "{\"weight_map\":[]}", "IDX_SHAPE", "\"weight_map\" must be an object"},
      {"map is null", "{\"weight_map\":null}", "IDX_SHAPE", "\"weight_map\" must be an object"},
      {"shard is a number", map_of("\"a\":1"), "IDX_SHAPE", "the shard of tensor \"a\" must be a string"},
      {"shard is a list", map_of("\"a\":[\"x.safetensors\"]"), "IDX_SHAPE",
       "the shard of tensor \"a\" must be a string"},
      {"not JSON", "weight_map: {}", "IDX_SHAPE", "it is not JSON at byte 1"},
      {"cut", "{\"weight_map\":{\"a\":\"x.safe", "IDX_SHAPE", "it is not JSON"},
      {"second value", map_of("\"a\":\"x.safetensors\"") + "{}", "IDX_SHAPE", "it is not JSON"},
      {"NUL", map_of("\"a\":\"x.safetensors\"") + std::string(1, '\0'), "IDX_SHAPE", "NUL byte"},
      {"byte order mark", "\xEF\xBB\xBF" + map_of("\"a\":\"x.safetensors\""), "IDX_SHAPE", "byte order mark"},
      {"not UTF-8", map_of("\"\xFF\":\"x.safetensors\""), "IDX_SHAPE", "it is not JSON"},
      {"too deep", "{\"x\":[[[[]]]]," + map_of("\"a\":\"x.safetensors\"").substr(1), "IDX_SHAPE", "deeper than 4"},
      {"too large", std::string((64u << 20) + 1, ' '), "IDX_SHAPE", "more than 67108864 bytes"},
      {"total_size is a string", "{\"metadata\":{\"total_size\":\"8\"}," + map_of("\"a\":\"x.safetensors\"").substr(1),
       "IDX_SHAPE", "\"total_size\" must be a number"},
      {"tensor twice", map_of("\"a\":\"x.safetensors\",\"a\":\"y.safetensors\""), "IDX_DUP_KEY",
       "the key \"a\" appears twice"},
      {"tensor twice after unescaping", map_of("\"a\":\"x.safetensors\",\"\\u0061\":\"x.safetensors\""), "IDX_DUP_KEY",
       "the key \"a\""},
      {"map twice", "{\"weight_map\":{\"a\":\"x.safetensors\"},\"weight_map\":{\"b\":\"x.safetensors\"}}",
       "IDX_DUP_KEY", "\"weight_map\""},
      {"metadata key twice", "{\"metadata\":{\"k\":1,\"k\":2}," + map_of("\"a\":\"x.safetensors\"").substr(1),
       "IDX_DUP_KEY", "\"k\""},
      {"absolute path", shard("/etc/x.safetensors"), "IDX_PATH",
       "shard name \"/etc/x.safetensors\" leaves the model folder"},
      {"parent folder", shard("../x.safetensors"), "IDX_PATH", "leaves the model folder"},
      {"subfolder", shard("sub/x.safetensors"), "IDX_PATH", "leaves the model folder"},
      {"backslash", shard("..\\\\x.safetensors"), "IDX_PATH", "leaves the model folder"},
      {"NUL in the name", shard("x\\u0000.safetensors"), "IDX_PATH", "leaves the model folder"},
      {"dot", shard("."), "IDX_PATH", "leaves the model folder"},
      {"dot dot", shard(".."), "IDX_PATH", "leaves the model folder"},
      {"empty name", shard(""), "IDX_PATH", "is not a file name"},
      {"only the suffix", shard(".safetensors"), "IDX_PATH", "is not a file name"},
      {"another suffix", shard("x.bin"), "IDX_PATH", "ends in .safetensors"},
      {"pickle", shard("pytorch_model-00001-of-00002.pth"), "IDX_PATH", "ends in .safetensors"},
      {"too long", shard(std::string(245, 'x') + ".safetensors"), "IDX_PATH", "up to 255 bytes"},
      {"too many shards", map_of(crowd), "IDX_LIMIT", "more than 10000 shards"},
  };
}

TEST(ShardIndex, RefusesBadIndices) {
  for (const Bad& bad : bad_indices()) {
    const Error error = error_of([&] { parse_shard_index(bad.text, "i.json"); });
    EXPECT_EQ(error.code(), bad.code) << bad.label << ": " << error.what();
    EXPECT_EQ(error.exit_code(), ExitCode::bad_input) << bad.label;
    EXPECT_NE(std::string(error.what()).find(bad.piece), std::string::npos) << bad.label << ": " << error.what();
  }
}

TEST(ShardIndex, ReadsMapAndTotal) {
  const ShardIndex index = parse_shard_index(
      "{\"metadata\":{\"total_size\":24,\"other\":[1,{}]},\"x\":null,"
      "\"weight_map\":{\"b\":\"2.safetensors\",\"a\":\"1.safetensors\",\"c\":\"2.safetensors\"}}\n",
      "i.json");
  EXPECT_EQ(index.shards, (std::vector<std::string>{"1.safetensors", "2.safetensors"}));
  EXPECT_EQ(index.weight_map, (std::map<std::string, uint32_t>{{"a", 0}, {"b", 1}, {"c", 1}}));
  EXPECT_EQ(index.total_size, 24u);
  EXPECT_EQ(parse_shard_index("{\"metadata\":{\"total_size\":2.4e1},\"weight_map\":{\"a\":\"1.safetensors\"}}", "i")
                .total_size,
            std::nullopt);
}

/// Headers of two shards: "1.safetensors" holds `first`, "2.safetensors" holds `second` (U8 tensors of one byte).
std::vector<Header> shard_headers(const std::vector<std::string>& first, const std::vector<std::string>& second) {
  std::vector<Header> headers;
  for (const auto& names : {first, second}) {
    std::string json = "{";
    for (std::size_t i = 0; i < names.size(); ++i) json += (i == 0 ? "" : ",") + entry(names[i], "U8", "[1]", i, i + 1);
    const std::string bytes = corpus::file(json + "}", names.size());
    headers.push_back(parse_header(bytes, bytes.size(), "shard"));
  }
  return headers;
}

std::vector<std::string> check(const ShardIndex& index, const std::vector<Header>& headers,
                               Profile profile = Profile::strict) {
  return check_shards(index, {&headers[0], &headers[1]}, profile);
}

TEST(ShardIndex, ComparesShardsWithTheIndex) {
  const std::string map = "\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}";
  const ShardIndex index = parse_shard_index("{" + map, "i.json");
  EXPECT_TRUE(check(index, shard_headers({"a"}, {"b"})).empty());
  for (const Profile profile : {Profile::strict, Profile::compat}) {
    EXPECT_ERROR(check(index, shard_headers({"a"}, {}), profile), ExitCode::bad_input, "IDX_MISSING_TENSOR",
                 "1 tensors are not in the shards the index names: \"b\"");
    EXPECT_ERROR(check(index, shard_headers({}, {}), profile), ExitCode::bad_input, "IDX_MISSING_TENSOR",
                 "2 tensors are not in the "
                 "shards the index names: \"a\", \"b\"");
    EXPECT_ERROR(check(index, shard_headers({}, {"b", "c"}), profile), ExitCode::bad_input, "IDX_MISSING_TENSOR",
                 "\"a\"");
    EXPECT_ERROR(check(index, shard_headers({"b"}, {"a"}), profile), ExitCode::bad_input, "IDX_WRONG_SHARD",
                 "tensor \"a\" should be in 1.safetensors and is in 2.safetensors");
    EXPECT_ERROR(check(index, shard_headers({"a", "b"}, {}), profile), ExitCode::bad_input, "IDX_WRONG_SHARD",
                 "tensor \"b\"");
    EXPECT_ERROR(check(index, shard_headers({}, {"a", "b"}), profile), ExitCode::bad_input, "IDX_WRONG_SHARD",
                 "tensor \"a\"");
    EXPECT_ERROR(check(index, shard_headers({"a"}, {"a", "b"}), profile), ExitCode::bad_input, "IDX_DUP_TENSOR",
                 "tensor \"a\" is in 1.safetensors and in 2.safetensors");
    EXPECT_ERROR(check(index, shard_headers({"a", "b"}, {"b"}), profile), ExitCode::bad_input, "IDX_DUP_TENSOR",
                 "tensor \"b\"");
    EXPECT_ERROR(check(index, shard_headers({"a", "x"}, {"b", "x"}), profile), ExitCode::bad_input, "IDX_DUP_TENSOR",
                 "tensor \"x\"");
  }
}

TEST(ShardIndex, ExtrasAndTotalsAreWarningsInCompat) {
  const std::string map = "\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}";
  const ShardIndex index = parse_shard_index("{" + map, "i.json");
  const auto warning = [&](const std::vector<std::string>& first, const std::vector<std::string>& second) {
    const auto warnings = check(index, shard_headers(first, second), Profile::compat);
    return warnings.size() == 1 ? warnings[0] : std::to_string(warnings.size()) + " warnings";
  };
  EXPECT_ERROR(check(index, shard_headers({"a", "x"}, {"b"})), ExitCode::bad_input, "IDX_EXTRA_TENSOR", "\"x\"");
  EXPECT_NE(warning({"a", "x"}, {"b"}).find("\"x\""), std::string::npos);
  EXPECT_ERROR(check(index, shard_headers({"a"}, {"b", "y"})), ExitCode::bad_input, "IDX_EXTRA_TENSOR", "\"y\"");
  EXPECT_NE(warning({"a"}, {"b", "y"}).find("\"y\""), std::string::npos);
  EXPECT_ERROR(check(index, shard_headers({"a", "x"}, {"b", "y"})), ExitCode::bad_input, "IDX_EXTRA_TENSOR",
               "\"x\", \"y\"");
  EXPECT_NE(warning({"a", "x"}, {"b", "y"}).find("\"x\", \"y\""), std::string::npos);
  EXPECT_TRUE(check(parse_shard_index("{\"metadata\":{\"total_size\":2}," + map, "i"), shard_headers({"a"}, {"b"}),
                    Profile::strict)
                  .empty());
  const auto claims = [&](const char* total, Profile profile) {
    const std::string text = "{\"metadata\":{\"total_size\":" + std::string(total) + "}," + map;
    return check(parse_shard_index(text, "i.json"), shard_headers({"a"}, {"b"}), profile);
  };
  EXPECT_ERROR(claims("0", Profile::strict), ExitCode::bad_input, "IDX_TOTAL_SIZE", "claims 0 bytes of tensors");
  EXPECT_ERROR(claims("1", Profile::strict), ExitCode::bad_input, "IDX_TOTAL_SIZE", "the shards hold 2");
  EXPECT_ERROR(claims("3", Profile::strict), ExitCode::bad_input, "IDX_TOTAL_SIZE", "claims 3 bytes of tensors");
  for (const char* total : {"0", "1", "3"}) EXPECT_EQ(claims(total, Profile::compat).size(), 1u) << total;
}

ShardIndex index_of(const std::vector<std::string>& shards) {
  std::string entries;
  for (const std::string& shard : shards) entries += (entries.empty() ? "\"" : ",\"") + shard + "\":\"" + shard + "\"";
  return parse_shard_index(map_of(entries), "i.json");
}

TEST(OpenShards, ListsAllMissingAtOnce) {
  const TempFolder folder;
  folder.write("2.safetensors", "x");
  const ShardIndex index = index_of({"1.safetensors", "2.safetensors", "3.safetensors"});
  EXPECT_ERROR(open_shards(index, folder.path()), ExitCode::not_found, "IDX_MISSING_SHARD",
               "2 of 3 shards are missing in " + folder.path().string() + ": 1.safetensors, 3.safetensors; fetch them");
  folder.write("1.safetensors", "x");
  EXPECT_ERROR(open_shards(index, folder.path()), ExitCode::not_found, "IDX_MISSING_SHARD", "1 of 3");
  fs::create_symlink("gone", folder / "3.safetensors");
  EXPECT_ERROR(open_shards(index, folder.path()), ExitCode::not_found, "IDX_MISSING_SHARD", "3.safetensors");
}

TEST(OpenShards, RefusesOneFileUnderTwoNames) {
  const TempFolder folder;
  folder.write("1.safetensors", "x");
  fs::create_hard_link(folder / "1.safetensors", folder / "2.safetensors");
  EXPECT_ERROR(open_shards(index_of({"1.safetensors", "2.safetensors"}), folder.path()), ExitCode::bad_input,
               "IDX_LIMIT", "shards 1.safetensors and 2.safetensors are one file");
  fs::create_symlink("1.safetensors", folder / "3.safetensors");
  EXPECT_ERROR(open_shards(index_of({"1.safetensors", "3.safetensors"}), folder.path()), ExitCode::bad_input,
               "IDX_LIMIT", "are one file");
}

TEST(OpenShards, FollowsLinksOnlyInsideTheModelOrItsCache) {
  const TempFolder root;
  root.write("models--x/blobs/hash", "blob");
  root.write("models--x/snapshots/rev/transformer/real.safetensors", "real");
  root.write("elsewhere/other.safetensors", "other");
  root.write("blobs/fake", "fake");
  const fs::path rev = root / "models--x/snapshots/rev", folder = rev / "transformer";
  const auto link = [&](const fs::path& target, const fs::path& name) { fs::create_symlink(target, name); };
  link("../../blobs/hash", rev / "top.safetensors");
  link("../../../blobs/hash", folder / "cached.safetensors");
  link("real.safetensors", folder / "inside.safetensors");
  link(root / "elsewhere/other.safetensors", folder / "absolute.safetensors");
  link("../../../../elsewhere/other.safetensors", folder / "relative.safetensors");
  link("../../../../blobs/fake", folder / "other_blobs.safetensors");
  link("loop.safetensors", folder / "loop.safetensors");
  link(root / "elsewhere", folder / "out");
  link("out/other.safetensors", folder / "indirect.safetensors");

  EXPECT_EQ(open_in_folder(rev, "top.safetensors").size(), 4u);
  EXPECT_EQ(open_in_folder(folder, "cached.safetensors").size(), 4u);
  EXPECT_EQ(open_in_folder(folder, "inside.safetensors").size(), 4u);
  const std::string out = "is a symbolic link to " + root.path().string();
  const auto open = [&](const char* name) { return open_in_folder(folder, name); };
  EXPECT_ERROR(open("absolute.safetensors"), ExitCode::bad_input, "IDX_SYMLINK", out);
  EXPECT_ERROR(open("relative.safetensors"), ExitCode::bad_input, "IDX_SYMLINK", out);
  EXPECT_ERROR(open("other_blobs.safetensors"), ExitCode::bad_input, "IDX_SYMLINK", out);
  EXPECT_ERROR(open("indirect.safetensors"), ExitCode::bad_input, "IDX_SYMLINK", out);
  EXPECT_ERROR(open_in_folder(folder, "loop.safetensors"), ExitCode::not_found, "", "leads nowhere");
  EXPECT_ERROR(open_in_folder(root / "nowhere", "x.safetensors"), ExitCode::not_found, "", "cannot open folder");
}

}  // namespace
}  // namespace trainer::weights
