#include <data/source.hpp>

#include <algorithm>

#include "helpers.hpp"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;

class SourceTest : public testing::Test {
 protected:
  void SetUp() override {
    use_image_module();
    source_.folder = folder_.path().string();
    source_.resolution = {64};
  }
  Dataset scanned() { return scan(std::span(&source_, 1), options_); }
  /// Messages with the folder's own path cut out.
  std::string refusal() {
    return message_of([&] { scanned(); }, folder_.path().string() + "/");
  }
  /// "name|caption" for each sample.
  std::vector<std::string> samples() {
    std::vector<std::string> texts;
    for (const Sample& sample : scanned().samples) {
      texts.push_back(sample.file.lexically_relative(folder_.path()).string() + "|" + sample.caption);
    }
    return texts;
  }
  void picture(const std::string& name, const char* caption) {
    folder_.copy("quad.png", name + ".png");
    if (caption != nullptr) folder_.write(name + ".txt", caption);
  }

  TempFolder folder_;
  recipe::Data source_;
  ScanOptions options_;
};

using Names = std::vector<std::string>;
using namespace std::string_literals;

TEST_F(SourceTest, PicturesWithCaptionFilesInTheOrderOfTheirNames) {
  picture("b", "second\n");
  picture("a", "first");
  picture("C", nullptr);
  folder_.write("C.caption", "third");
  folder_.write("a.caption", "not this one");
  folder_.write("notes.md", "no picture");
  EXPECT_EQ(samples(), (Names{"C.png|third", "a.png|first", "b.png|second"}));
  source_.trigger = "sks dog";
  source_.repeats = 5;
  const Dataset dataset = scanned();
  EXPECT_EQ(dataset.samples[1].caption, "sks dog, first");
  EXPECT_EQ(dataset.samples[1].repeats, 5);
  EXPECT_EQ(dataset.samples[1].width, 48);
  EXPECT_EQ(dataset.samples[1].height, 32);
  EXPECT_EQ(dataset.samples[1].bucket, (Bucket{64, 64}));
  EXPECT_EQ(dataset.samples[1].content.size(), 32U);
  EXPECT_EQ(dataset.samples[1].content, dataset.samples[2].content);
  EXPECT_TRUE(dataset.notes.empty());
}

TEST_F(SourceTest, WhatOtherToolsLeaveBehindIsNoData) {
  picture("a", "first");
  for (const char* name : {".hidden.png", "a-masklabel.png", "a-condlabel.png"}) folder_.copy("quad.png", name);
  for (const char* name : {"_latent_cache", "_t_e_cache", "_controls", "__MACOSX", ".git", "sub"}) {
    folder_.copy("quad.png", std::string(name) + "/x.png");
  }
  EXPECT_EQ(samples(), (Names{"a.png|first"}));
  source_.recursive = true;
  EXPECT_EQ(refusal(),
            "1 file cannot be used:\n  sub/x.png: no caption: x.txt or x.caption is missing\n"
            "Add the missing captions, or give the source one caption for all pictures: caption = \"...\"");
  folder_.write("sub/x.txt", "deep");
  EXPECT_EQ(samples(), (Names{"a.png|first", "sub/x.png|deep"}));
}

TEST_F(SourceTest, EverythingBadIsReportedAtOnce) {
  picture("good", "fine");
  picture("uncaptioned", nullptr);
  picture("latin1", "caf\xE9");
  folder_.copy("truncated.jpg", "cut.jpg");
  folder_.write("cut.txt", "its header is whole");
  folder_.copy("bomb_area.png", "bomb.png");
  folder_.write("bomb.txt", "x");
  folder_.copy("small.png", "icon.png");
  folder_.write("icon.txt", "x");
  folder_.write("fake.jpg", "hello");
  folder_.write("fake.txt", "x");
  folder_.write("old.gif", "GIF89a");
  folder_.write("empty.webp", "");
  folder_.write("empty.txt", "x");
  EXPECT_EQ(refusal(),
            "8 files cannot be used:\n"
            "  bomb.png: 20000 x 20000 pixels, more than 178 million\n"
            "  cut.jpg: damaged jpeg: VipsJpeg: Premature end of input file\n"
            "  empty.webp: no picture in a format that is read (jpeg, png, webp, avif, heic, tiff)\n"
            "  fake.jpg: no picture in a format that is read (jpeg, png, webp, avif, heic, tiff)\n"
            "  icon.png: too small: 15 x 40 pixels, at least 16 x 16 are needed\n"
            "  latin1.png: caption latin1.txt is not UTF-8 at byte 3\n"
            "  old.gif: .gif files are not read; convert it to jpeg, png, webp, avif or tiff\n"
            "  uncaptioned.png: no caption: uncaptioned.txt or uncaptioned.caption is missing\n"
            "Add the missing captions, or give the source one caption for all pictures: caption = \"...\"");
}

TEST_F(SourceTest, NamesOfFilesCanNeitherMoveTheCursorNorBeginALine) {
  picture("good", "a fox");
  picture("a\x1b[2J\nok     everything fine", nullptr);
  folder_.write("b\xff.gif", "x");
  EXPECT_EQ(refusal(),
            "2 files cannot be used:\n"
            "  a\\x1b[2J\\x0aok     everything fine.png: no caption: a\\x1b[2J\\x0aok     everything fine.txt or "
            "a\\x1b[2J\\x0aok     everything fine.caption is missing\n"
            "  b\\xff.gif: .gif files are not read; convert it to jpeg, png, webp, avif or tiff\n"
            "Add the missing captions, or give the source one caption for all pictures: caption = \"...\"");
  std::filesystem::remove(folder_.path() / "b\xff.gif");
  source_.caption = "a fox";
  folder_.copy("quad.png", "A\x1b[2J\nok     everything fine.png");
  EXPECT_EQ(scanned().notes.size(), 1U);
  EXPECT_EQ(scanned().notes[0].find_first_of("\x1b\n"), std::string::npos) << scanned().notes[0];
}

TEST_F(SourceTest, MetadataThatIsALinkOutOfTheFolderIsRefused) {
  const TempFolder other;
  picture("a", "a fox");
  const std::string row = "{\"file_name\": \"a.png\", \"text\": \"from elsewhere\"}\n";
  other.write("metadata.jsonl", row);
  const fs::path link = folder_.path() / "metadata.jsonl";
  for (const fs::path& target : {other.path() / "metadata.jsonl", fs::path("/nowhere")}) {
    fs::create_symlink(target, link);
    EXPECT_EQ(
        refusal(),
        "metadata.jsonl: is a link to nothing or out of the data folder; name it in the recipe (data.metadata) if "
        "it is meant");
    fs::remove(link);
  }
  folder_.write("rows", row);
  fs::create_symlink("rows", link);
  EXPECT_EQ(samples(), (Names{"a.png|from elsewhere"})) << "within the folder";
  fs::remove(link);
  source_.metadata = (other.path() / "metadata.jsonl").string();
  EXPECT_EQ(samples(), (Names{"a.png|from elsewhere"})) << "named by the user";
}

TEST_F(SourceTest, NoCaptionAtAllIsOneSentence) {
  for (const char* name : {"a", "b", "c"}) picture(name, nullptr);
  source_.captions = {".txt"};
  EXPECT_EQ(refusal(),
            "data folder " + source_.folder +
                ": none of its 3 pictures has a caption (looked for files of the same name ending in .txt)\n"
                "Add the missing captions, or give the source one caption for all pictures: caption = \"...\"");
  source_.caption = "a fox";
  EXPECT_EQ(samples(), (Names{"a.png|a fox", "b.png|a fox", "c.png|a fox"}));
}

TEST_F(SourceTest, EmptyCaptionsAreCaptions) {
  picture("a", "");
  EXPECT_EQ(samples(), (Names{"a.png|"}));
}

TEST_F(SourceTest, AFolderWithoutPicturesIsAnError) {
  folder_.write("sub/readme.txt", "x");
  EXPECT_EQ(refusal(), "data folder " + source_.folder +
                           ": no picture (jpg, jpeg, png, webp, avif, heic, tif, tiff); it has folders below it: set "
                           "recursive = true to read them\nMend or remove what is named here.");
  source_.folder += "/missing";
  try {
    scanned();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::not_found);
  }
}

TEST_F(SourceTest, FoldersThatCannotBeRead) {
  picture("a", "good");
  const std::string there = source_.folder;
  source_.folder = there + "/nowhere";
  EXPECT_EQ(refusal(), "data folder nowhere: No such file or directory");
  source_.folder = there + "/a.png";
  EXPECT_EQ(refusal(), "data folder a.png is a file");
  source_.folder = there;
  EXPECT_EQ(message_of([&] { without_files([&] { scanned(); }); }, there),
            "cannot read data folder : Too many open files");
  source_.recursive = true;
  std::string deep;
  for (int i = 0; i < 65; ++i) deep += "f/";
  fs::create_directories(folder_ / deep);
  EXPECT_TRUE(refusal().ends_with("/f: more than 64 folders deep")) << refusal();
  fs::remove(folder_ / deep);
  EXPECT_EQ(samples(), Names{"a.png|good"});
}

TEST_F(SourceTest, MetadataFiles) {
  folder_.copy("quad.png", "img/a.png");
  folder_.copy("quad.jpg", "img/b.jpg");
  folder_.write("list.jsonl",
                "{\"image_path\": \"img/b.jpg\", \"caption\": \"second\"}\n"
                "{\"image_path\": \"img/a.png\", \"caption\": \"first\\r\\n\"}\n");
  source_.metadata = (folder_ / "list.jsonl").string();
  EXPECT_EQ(samples(), (Names{"img/b.jpg|second", "img/a.png|first"}));
  EXPECT_TRUE(scanned().notes.empty());
  folder_.write("list.jsonl",
                "{\"image_path\": \"img/a.png\", \"caption\": \"one\"}\n"
                "{\"image_path\": \"img/../img/a.png\", \"caption\": \"two\"}\n");
  EXPECT_EQ(samples(), (Names{"img/a.png|one", "img/../img/a.png|two"}));
  EXPECT_EQ(scanned().notes, (Names{(folder_ / "list.jsonl").string() +
                                    ":2: img/../img/a.png is named in line 1, too; it is trained with each of the "
                                    "captions"}));
  folder_.write("list.jsonl",
                "{\"image_path\": \"img/a.png\", \"caption\": \"first\"}\n{\"image_path\": \"img/c.png\"}\n"
                "{\"image_path\": \"/etc/passwd\", \"caption\": \"x\"}\n{\"image_path\": \"img/b.jpg\"}\n");
  EXPECT_EQ(refusal(),
            "3 files cannot be used:\n  img/b.jpg: no caption in list.jsonl:4\n"
            "  list.jsonl:2: picture img/c.png does not exist\n"
            "  list.jsonl:3: picture /etc/passwd lies outside the data folder\n"
            "Add the missing captions, or give the source one caption for all pictures: caption = \"...\"");
}

TEST_F(SourceTest, AnImagefolderIsReadAsItIs) {
  folder_.copy("quad.png", "a.png");
  folder_.copy("quad.png", "unlisted.png");
  folder_.write("metadata.csv", "file_name,text\na.png,\"a fox, red\"\n");
  EXPECT_EQ(samples(), (Names{"a.png|a fox, red"}));
  EXPECT_EQ(scanned().notes,
            (Names{"pictures and captions of " + source_.folder + " are those that metadata.csv names"}));
}

TEST_F(SourceTest, EmptyCaptionsAreTold) {
  picture("a", "first");
  picture("b", "");
  EXPECT_EQ(samples(), (Names{"a.png|first", "b.png|"}));
  EXPECT_EQ(scanned().notes, (Names{"1 picture has an empty caption and will be trained without text"}));
  source_.trigger = "sks";
  EXPECT_TRUE(scanned().notes.empty());
}

TEST_F(SourceTest, LinksMustStayInside) {
  const TempFolder elsewhere;
  elsewhere.copy("quad.png", "x.png");
  picture("a", "first");
  fs::create_symlink(folder_ / "a.png", folder_ / "inside.png");
  folder_.write("inside.txt", "linked");
  EXPECT_EQ(samples(), (Names{"a.png|first", "inside.png|linked"}));
  fs::create_symlink(elsewhere / "x.png", folder_ / "outside.png");
  folder_.write("outside.txt", "x");
  picture("b", nullptr);
  fs::create_symlink("/etc/hostname", folder_ / "b.txt");
  EXPECT_EQ(refusal(),
            "2 files cannot be used:\n"
            "  b.png: caption b.txt is a link to nothing or out of the data folder\n"
            "  outside.png: is a link to nothing or out of the data folder\nMend or remove what is named here.");
}

TEST_F(SourceTest, SmallPicturesAreEnlargedOrLeftOut) {
  picture("a", "first");
  source_.resolution = {256};
  EXPECT_EQ(scanned().notes, (Names{"1 pictures of " + source_.folder +
                                    " are enlarged more than twofold; a smaller resolution would suit them"}));
  source_.upscale = false;
  EXPECT_EQ(refusal(), "no picture is left to train on:\n1 pictures of " + source_.folder +
                           " are smaller than their bucket and left out (upscale = false): a.png");
  source_.resolution = {48, 32};
  EXPECT_EQ(samples(), (Names{"a.png|first"}));
}

TEST_F(SourceTest, SeveralSourcesKeepTheirOwnSettings) {
  picture("one/a", "first");
  picture("two/a", "second");
  std::vector<recipe::Data> sources(2, source_);
  sources[0].folder += "/one";
  sources[1].folder += "/two";
  sources[1].resolution = {128};
  sources[1].trigger = "t";
  std::size_t done = 0;
  options_.progress = [&](std::size_t i, std::size_t total) { done = 10 * i + total; };
  const Dataset dataset = scan(sources, options_);
  ASSERT_EQ(dataset.samples.size(), 2U);
  EXPECT_EQ(done, 22U);
  EXPECT_EQ(dataset.samples[0].bucket, (Bucket{64, 64}));
  EXPECT_EQ(dataset.samples[1].bucket, (Bucket{160, 96}));
  EXPECT_EQ(dataset.samples[1].caption, "t, second");
  EXPECT_EQ(dataset.samples[1].source, 1U);
}

TEST_F(SourceTest, NamesThatDifferInCaseOnlyAreNoted) {
  picture("Fox", "a");
  picture("fox", "b");
  EXPECT_EQ(scanned().notes, (Names{(folder_ / "Fox.png").string() + " and " + (folder_ / "fox.png").string() +
                                    " differ in case or extension only"}));
}

// "\u00e9" is one letter in NFC; older Macs write it as two, NFD.
TEST_F(SourceTest, TwoUnicodeFormsOfANameAreNoted) {
  picture("caf\u00e9", "a");
  picture("cafe\u0301", "b");
  EXPECT_EQ(scanned().notes,
            (Names{(folder_ / "cafe\u0301.png").string() + " and " + (folder_ / "caf\u00e9.png").string() +
                   " are one name in two Unicode forms (NFC, NFD): is one a copy of the other? Both are trained"}));
  EXPECT_EQ(samples(), (Names{"cafe\u0301.png|b", "caf\u00e9.png|a"})) << "each has the caption of its own form";
}

TEST_F(SourceTest, ACaptionIsFoundInTheOtherUnicodeForm) {
  for (const auto& [image, text] : {std::pair{"caf\u00e9", "cafe\u0301"}, {"u\u0308bung", "\u00fcbung"}}) {
    picture(image, nullptr);
    folder_.write(text + ".txt"s, image);
  }
  picture("x\u0301", nullptr);  // no composed form: one spelling, and it has no caption
  folder_.write("x.txt", "not its own");
  EXPECT_NE(refusal().find("x\u0301.png: no caption: x\u0301.txt or "), std::string::npos) << refusal();
  fs::remove(folder_ / "x\u0301.png");
  EXPECT_EQ(samples(), (Names{"caf\u00e9.png|caf\u00e9", "u\u0308bung.png|u\u0308bung"}));
}

TEST_F(SourceTest, ACaptionThatSeveralFormsCouldBeIsNotGuessed) {
  const std::string three = "a\u0301\u0323", other = "\u00e1\u0323", composed = "\u1ea1\u0301";  // one name
  picture(three, nullptr);
  folder_.write(other + ".txt", "one");
  EXPECT_EQ(samples(), Names{three + ".png|one"});
  folder_.write(composed + ".txt", "two");
  EXPECT_NE(refusal().find("has a caption"), std::string::npos) << refusal();
}

TEST_F(SourceTest, MetadataFindsPicturesInTheOtherUnicodeForm) {
  folder_.copy("quad.png", "de\u0301ja\u0300/cafe\u0301.png");
  folder_.write("m.jsonl", "{\"image\": \"d\u00e9j\u00e0/caf\u00e9.png\", \"caption\": \"c\"}\n");
  source_.metadata = (folder_ / "m.jsonl").string();
  EXPECT_EQ(samples(), Names{"de\u0301ja\u0300/cafe\u0301.png|c"});
}

TEST_F(SourceTest, VerifyingFindsWhatTheHeaderDoesNotShow) {
  folder_.copy("truncated.jpg", "cut.jpg");
  folder_.write("cut.txt", "x");
  EXPECT_EQ(refusal(), "");
  options_.verify_pixels = true;
  EXPECT_EQ(refusal(),
            "1 file cannot be used:\n  cut.jpg: damaged jpeg: VipsJpeg: Premature end of input file\n"
            "Mend or remove what is named here.");
}

TEST_F(SourceTest, OfVeryManyProblemsAThousandAreNamed) {
  std::string rows;
  for (int i = 0; i < 1003; ++i) rows += "x\n";
  folder_.write("metadata.jsonl", rows);
  const std::string text = refusal();
  EXPECT_TRUE(text.starts_with("1003 files cannot be used:\n  metadata.jsonl:1: is not valid JSON")) << text;
  EXPECT_NE(text.find("\n  ... and 3 more\n"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1002);
}

TEST_F(SourceTest, OfVeryManyRepeatsAHundredAreNamed) {
  folder_.copy("quad.png", "a.png");
  std::string rows;
  for (int i = 0; i < 104; ++i)
    rows += R"({"image": "a.png", "text": "x"})"
            "\n";
  folder_.write("metadata.jsonl", rows);
  const std::vector<std::string> notes = scanned().notes;
  EXPECT_EQ(
      std::count_if(notes.begin(), notes.end(),
                    [](const std::string& note) { return note.find("is named in line 1, too") != std::string::npos; }),
      100);
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
    return note.ends_with("metadata.jsonl: 3 more lines name a picture that another line names, too");
  }));
}

}  // namespace
}  // namespace trainer::data
