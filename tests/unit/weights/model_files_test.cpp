#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <weights/convert.hpp>
#include <weights/model_files.hpp>
#include <weights/write.hpp>

#include "helpers.hpp"

namespace trainer::weights {
namespace {

namespace fs = std::filesystem;

/// Two shards, 1.safetensors {a, b} and 2.safetensors {c}, and an index.
void write_sharded(const TempFolder& folder, const std::string& sub, const std::string& total = "28") {
  folder.write(sub + "/model.safetensors.index.json",
               "{\"metadata\":{\"total_size\":" + total +
                   "},\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"1.safetensors\","
                   "\"c\":\"2.safetensors\"}}");
  write_safetensors(folder / sub / "1.safetensors", {{"a", at::arange(4, at::kFloat)}, {"b", at::ones({1})}},
                    {{"format", "pt"}});
  write_safetensors(folder / sub / "2.safetensors", {{"c", at::full({2}, 7, at::kFloat)}},
                    {{"format", "other"}, {"k", "v"}});
}

TEST(ModelFiles, MergesShards) {
  const TempFolder folder;
  write_sharded(folder, "m");
  folder.write("m/config.json", "{\"x\": 1}");
  const auto model = ModelFiles::open(folder / "m");
  EXPECT_EQ(model->names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(model->find("c")->shape, (std::vector<int64_t>{2}));
  EXPECT_EQ(model->find("d"), nullptr);
  EXPECT_TRUE(at::equal(model->read("a"), at::arange(4, at::kFloat)));
  EXPECT_TRUE(at::equal(model->read("c"), at::full({2}, 7, at::kFloat)));
  EXPECT_TRUE(at::equal(model->read_rows("a", 1, 3), at::arange(1, 3, at::kFloat)));
  EXPECT_EQ(model->total_bytes(), 28u);
  EXPECT_EQ(model->describe(), (folder / "m").string());
  EXPECT_EQ(model->config(), "{\"x\": 1}");
  EXPECT_EQ(model->metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"k", "v"}}));
  EXPECT_EQ(ModelFiles::open(folder / "m/model.safetensors.index.json")->describe(), model->describe());
  EXPECT_ERROR(model->read("A"), ExitCode::bad_input, "ST_NO_TENSOR", "m: there is no tensor \"A\"");
  EXPECT_ERROR(model->read_rows("zz", 0, 1), ExitCode::bad_input, "ST_NO_TENSOR", "\"zz\"");
}

TEST(ModelFiles, OpensASingleFileAndAFolderWithOne) {
  const TempFolder folder;
  write_safetensors(folder.write("one/x.safetensors", ""), {{"t", at::ones({2})}});
  folder.write("one/config.json", "{}");
  folder.write("one/.x.safetensors.tmp-1-0", "ignored");
  for (const fs::path& path : {folder / "one", folder / "one/x.safetensors"}) {
    const auto model = ModelFiles::open(path);
    EXPECT_TRUE(at::equal(model->read("t"), at::ones({2})));
    EXPECT_EQ(model->config(), "{}");
    EXPECT_EQ(model->describe(), path.string());
  }
  fs::remove(folder / "one/config.json");
  EXPECT_EQ(ModelFiles::open(folder / "one")->config(), std::nullopt);
}

TEST(ModelFiles, PrefersIndexThenCustomaryNames) {
  const TempFolder folder;
  const auto put = [&](const std::string& name, float value) {
    write_safetensors(folder.write("m/" + name, ""), {{"t", at::full({1}, value)}});
  };
  put("b.safetensors", 1);
  put("c.safetensors", 2);
  EXPECT_ERROR(ModelFiles::open(folder / "m"), ExitCode::bad_input, "MODEL_FILES",
               "it has several models (b.safetensors, c.safetensors) and no index that joins them; name one file");
  put("model.safetensors", 3);
  EXPECT_EQ(ModelFiles::open(folder / "m")->read("t").item<float>(), 3);
  put("diffusion_pytorch_model.safetensors", 4);
  EXPECT_EQ(ModelFiles::open(folder / "m")->read("t").item<float>(), 4);
  folder.write("m/x.safetensors.index.json", "{\"weight_map\":{\"t\":\"c.safetensors\"}}");
  EXPECT_EQ(ModelFiles::open(folder / "m")->read("t").item<float>(), 2);
  folder.write("m/y.safetensors.index.json", "{\"weight_map\":{\"t\":\"b.safetensors\"}}");
  EXPECT_ERROR(ModelFiles::open(folder / "m"), ExitCode::bad_input, "MODEL_FILES",
               "several indices (x.safetensors.index.json, y.safe");
}

TEST(ModelFiles, TakesAComponentOfAPipeline) {
  const TempFolder folder;
  write_sharded(folder, "p/transformer");
  folder.write("p/model_index.json", "{}");
  write_safetensors(folder.write("p/vae/diffusion_pytorch_model.safetensors", ""), {{"v", at::ones({1})}});
  EXPECT_EQ(ModelFiles::open(folder / "p", {.component = "transformer"})->names().size(), 3u);
  EXPECT_EQ(ModelFiles::open(folder / "p", {.component = "vae"})->names(), (std::vector<std::string>{"v"}));
  EXPECT_EQ(ModelFiles::open(folder / "p/vae", {.component = "vae"})->names(), (std::vector<std::string>{"v"}));
  EXPECT_ERROR(ModelFiles::open(folder / "p"), ExitCode::not_found, "MODEL_FILES",
               "no .safetensors file in this folder; name one of its folders: transformer, vae");
}

TEST(ModelFiles, SaysWhatIsMissing) {
  const TempFolder folder;
  EXPECT_ERROR(ModelFiles::open(folder / "gone"), ExitCode::not_found, "",
               "there is no file " + (folder / "gone").string());
  fs::create_directory(folder / "empty");
  EXPECT_ERROR(ModelFiles::open(folder / "empty"), ExitCode::not_found, "MODEL_FILES", "is the download complete?");
  write_sharded(folder, "m");
  fs::remove(folder / "m/2.safetensors");
  EXPECT_ERROR(ModelFiles::open(folder / "m"), ExitCode::not_found, "IDX_MISSING_SHARD", "1 of 2 shards are missing");
  folder.write("m/2.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  EXPECT_ERROR(ModelFiles::open(folder / "m"), ExitCode::bad_input, "ST_HEADER_TOO_LARGE", "run `git lfs pull`");
}

/// Plugins, also those of others, parse it and show values of it in their messages.
TEST(ModelFiles, AConfigurationThatNestsDeeplyReachesNoPlugin) {
  const TempFolder folder;
  write_sharded(folder, "m");
  folder.write("m/config.json", "{\"num_layers\": " + std::string(64, '[') + std::string(64, ']') + "}");
  EXPECT_ERROR(ModelFiles::open(folder / "m"), ExitCode::bad_input, "JSON_DEPTH",
               (folder / "m/config.json").string() + ": its JSON is nested deeper than 64 levels");
  folder.write("m/config.json", "{\"num_layers\": " + std::string(63, '[') + std::string(63, ']') + "}");
  EXPECT_TRUE(ModelFiles::open(folder / "m")->config().has_value());
}

TEST(ModelFiles, AFolderThatCannotBeListedIsNoEmptyOne) {
  const TempFolder folder;
  write_sharded(folder, "m");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_ERROR(ModelFiles::open(folder / "m"), ExitCode::io, "",
               "cannot list folder " + (folder / "m").string() + ": ");
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(ModelFiles, WrongTotalsAreAnErrorOnlyInStrict) {
  const TempFolder folder;
  write_sharded(folder, "m", "29");
  EXPECT_NO_THROW(ModelFiles::open(folder / "m"));
  EXPECT_ERROR(ModelFiles::open(folder / "m", {.read = {.profile = Profile::strict}}), ExitCode::bad_input,
               "IDX_TOTAL_SIZE", "model.safetensors.index.json: it claims 29 bytes of tensors, the shards hold 28");
}

TEST(ModelFiles, ShardsThatAreLinksOutOfTheFolderAreRefused) {
  const TempFolder folder;
  write_sharded(folder, "m");
  fs::rename(folder / "m/2.safetensors", folder / "2.safetensors");
  fs::create_symlink("../2.safetensors", folder / "m/2.safetensors");
  EXPECT_ERROR(ModelFiles::open(folder / "m"), ExitCode::bad_input, "IDX_SYMLINK",
               "2.safetensors is a symbolic link to");
}

TEST(ModelFiles, IdentityFollowsContentAlone) {
  const TempFolder folder;
  write_sharded(folder, "m");
  const std::string before = ModelFiles::open(folder / "m")->identity();
  EXPECT_EQ(before.size(), 32u);
  EXPECT_EQ(ModelFiles::open(folder / "m")->identity(), before);
  fs::last_write_time(folder / "m/2.safetensors", fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(ModelFiles::open(folder / "m")->identity(), before) << "a copy is the same model";
  const auto time = fs::last_write_time(folder / "m/2.safetensors");
  write_safetensors(folder / "m/2.safetensors", {{"c", at::zeros({3})}});
  fs::last_write_time(folder / "m/2.safetensors", time);
  EXPECT_NE(ModelFiles::open(folder / "m")->identity(), before) << "other values are not, whatever the time says";
}

TEST(ModelFiles, GivesNamesAndShapesForTheContract) {
  const TempFolder folder;
  write_safetensors(folder / "f", {{"a", at::ones({2, 3}, at::kBFloat16)}, {"b", at::ones({1})}});
  const auto shapes = named_shapes(*ModelFiles::open(folder / "f"));
  ASSERT_EQ(shapes.size(), 2u);
  EXPECT_EQ(shapes[0].name + " " + shapes[0].dtype, "a BFloat16");
  EXPECT_EQ(shapes[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(shapes[1].dtype, "Float");
}

/// Folders written by diffusers and transformers: they open, every tensor reads, and the sharded transformer, which is
/// in bf16, holds the same tensors as the whole one rounded.
TEST(ModelFiles, OpensModelsWrittenByDiffusers) {
  const fs::path root = data_file("parity/tiny-dev");
  const auto whole = ModelFiles::open(root / "model", {.component = "transformer"});
  const auto sharded = ModelFiles::open(root / "transformer-sharded", {.read = {.profile = Profile::strict}});
  EXPECT_EQ(sharded->files().size(), 3u);
  EXPECT_EQ(sharded->names(), whole->names());
  ASSERT_GT(whole->names().size(), 20u);
  for (const std::string& name : whole->names()) {
    EXPECT_EQ(sharded->find(name)->dtype, at::kBFloat16) << name;
    EXPECT_TRUE(at::equal(whole->read(name).to(at::kBFloat16), sharded->read(name))) << name;
  }
  EXPECT_NE(whole->config()->find("Flux2Transformer2DModel"), std::string::npos);
  for (const char* other :
       {"model/text_encoder", "model/vae", "model-bfl/flux2.safetensors", "model-bfl/ae.safetensors"}) {
    const auto model = ModelFiles::open(root / other, {.read = {.profile = Profile::strict}});
    EXPECT_GT(model->names().size(), 10u) << other;
    for (const std::string& name : model->names()) EXPECT_TRUE(all_finite(model->read(name))) << other << " " << name;
  }
}

}  // namespace
}  // namespace trainer::weights
