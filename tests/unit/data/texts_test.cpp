/// @file Texts without pictures.
#include <data/source.hpp>

#include "helpers.hpp"

namespace trainer::data {
namespace {

class TextsTest : public testing::Test {
 protected:
  void SetUp() override { source_.folder = folder_.path().string(); }
  Dataset scanned() { return scan_texts(std::span(&source_, 1)); }
  std::string refusal() {
    return message_of([&] { scanned(); }, folder_.path().string() + "/");
  }
  TempFolder folder_;
  recipe::Data source_;
};

TEST_F(TextsTest, EveryTextFileIsASample) {
  folder_.write("b.txt", "second\r\nline\n");
  folder_.write("a.caption", "first");
  folder_.write("notes.md", "none");
  folder_.write(".hidden.txt", "none");
  folder_.write("below/c.txt", "third");
  source_.repeats = 3;
  const Dataset dataset = scanned();
  ASSERT_EQ(dataset.samples.size(), 2U);
  EXPECT_EQ(dataset.samples[0].caption, "first");
  EXPECT_EQ(dataset.samples[1].caption, "second\nline");
  EXPECT_EQ(dataset.samples[1].repeats, 3);
  EXPECT_FALSE(dataset.samples[0].is_picture());
  EXPECT_NE(dataset.samples[0].content, dataset.samples[1].content);
  source_.recursive = true;
  source_.trigger = "once";
  source_.captions = {".txt"};
  const Dataset deep = scanned();
  ASSERT_EQ(deep.samples.size(), 2U);
  EXPECT_EQ(deep.samples[0].caption, "once, second\nline");
  EXPECT_EQ(deep.samples[1].caption, "once, third");
}

TEST_F(TextsTest, AllThatIsWrongIsNamed) {
  EXPECT_NE(refusal().find("no text"), std::string::npos);
  folder_.write("a.txt", "caf\xe9");
  folder_.write("b.txt", " \n");
  folder_.write("c.txt", "good");
  const TempFolder elsewhere;
  elsewhere.write("secret", "not data");
  std::filesystem::create_symlink(elsewhere.path() / "secret", folder_.path() / "d.txt");
  const std::string text = refusal();
  EXPECT_NE(text.find("d.txt: is a link out of the data folder"), std::string::npos) << text;
  EXPECT_NE(text.find("a.txt: "), std::string::npos) << text;
  EXPECT_NE(text.find("b.txt: is empty"), std::string::npos) << text;
  EXPECT_EQ(text.find("c.txt"), std::string::npos) << text;
  const std::string there = source_.folder;
  EXPECT_EQ(message_of([&] { without_files([&] { scanned(); }); }, there),
            "cannot read data folder : Too many open files");
  source_.folder = there + "/nowhere";
  EXPECT_EQ(refusal(), "data folder nowhere: No such file or directory");
  source_.folder = there + "/c.txt";
  EXPECT_EQ(refusal(), "data folder c.txt: is a file");
}

}  // namespace
}  // namespace trainer::data
