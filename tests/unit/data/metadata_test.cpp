#include <data/metadata.hpp>

#include <tuple>

#include "helpers.hpp"

namespace trainer::data {
namespace {

/// "line image|caption" or "line !problem" for each row.
std::vector<std::string> rows_of(const std::string& name, const std::string& content) {
  const TempFolder folder;
  folder.write(name, content);
  std::vector<std::string> texts;
  for (const MetadataRow& row : read_metadata(folder / name)) {
    texts.push_back(std::to_string(row.line) + " " +
                    (row.problem.empty() ? row.image + "|" + row.caption.value_or("(none)") : "!" + row.problem));
  }
  return texts;
}

std::string refusal(const std::string& name, const std::string& content) {
  const TempFolder folder;
  folder.write(name, content);
  return message_of([&] { read_metadata(folder / name); }, folder.path().string() + "/");
}

using Rows = std::vector<std::string>;

TEST(Metadata, JsonLinesWithTheColumnsOfThePeers) {
  EXPECT_EQ(rows_of("m.jsonl",
                    "\xEF\xBB\xBF{\"image_path\": \"a.png\", \"caption\": \"a fox\"}\r\n\n"
                    "{\"file_name\": \"b.png\", \"text\": \"two\\nlines\", \"width\": 1e400}\n"
                    "{\"image\": \"c.png\", \"path\": \"x\", \"prompt\": \"\"}\n"
                    "{\"path\": \"d.png\", \"caption\": null}"),
            (Rows{"1 a.png|a fox", "3 !has a number that is out of range", "4 c.png|", "5 d.png|(none)"}));
}

TEST(Metadata, BadJsonLinesAreNamedAndTheOthersRead) {
  EXPECT_EQ(rows_of("m.jsonl",
                    "{\"image\": \"a.png\",}\n[1]\n{\"caption\": \"x\"}\n{\"image\": 3}\n"
                    "{\"image\": \"a\", \"text\": [\"x\"]}\n{\"image\": \"a\", \"image\": \"b\"}\n" +
                        std::string(40, '[') + "\n{\"image\": \"\"}\n{\"image\": \"z.png\", \"text\": \"z\"}\n"),
            (Rows{"1 !is not valid JSON (character 19)", "2 !is not an object {...}",
                  "3 !names no picture (key \"image\", \"file_name\", \"image_path\" or \"path\")",
                  "4 !\"image\" is not a string", "5 !\"text\" is not a string", "6 !has the key \"image\" twice",
                  "7 !is nested too deeply", "8 !names no picture (\"image\" is empty)", "9 z.png|z"}));
}

TEST(Metadata, ALineHasItsLimit) {
  const auto line = [](std::size_t bytes) {
    const std::string head = "{\"image\": \"a.png\", \"x\": \"", tail = "\"}";
    return head + std::string(bytes - head.size() - tail.size(), 'x') + tail;
  };
  EXPECT_EQ(rows_of("m.jsonl", line(std::size_t{1} << 20)), (Rows{"1 a.png|(none)"}));
  EXPECT_EQ(rows_of("m.jsonl", line((std::size_t{1} << 20) + 1)), (Rows{"1 !is longer than 1 MiB"}));
}

TEST(Metadata, ACsvRecordHasItsLimit) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  const auto record = [](std::size_t bytes) { return "image,x\na.png," + std::string(bytes - 6, 'x') + "\n"; };
  const auto quoted = [](std::size_t pairs) { return "image,x\na.png,\"" + std::string(2 * pairs, '"') + "\"\n"; };
  EXPECT_EQ(rows_of("m.csv", record(kMost)), (Rows{"2 a.png|(none)"}));
  EXPECT_EQ(rows_of("m.csv", quoted(kMost / 2 - 4)), (Rows{"2 a.png|(none)"}));
  const std::string refused = "a record is longer than 1 MiB; is a quote in it never closed?";
  for (const std::string& text : {record(kMost + 1), quoted(kMost / 2 - 3), "image\n\"" + std::string(kMost, '\n')})
    EXPECT_EQ(refusal("m.csv", text), "metadata m.csv: line 2: " + refused);
  EXPECT_EQ(refusal("m.csv", std::string(4 * kMost, ',')), "metadata m.csv: line 1: " + refused);
}

TEST(Metadata, TheNumberOfRowsHasItsLimit) {
  const std::string refused = "has more than 3 rows; split it, and name the parts in [[data]] sections of their own";
  for (const auto& [form, head, row] : {std::tuple(MetadataForm::csv, "image\n", "a\n"),
                                        std::tuple(MetadataForm::jsonl, "\n", "{\"image\": \"a\"}\n")}) {
    const std::string three = head + std::string(row) + row + "\n" + row;
    EXPECT_EQ(parse_metadata(three, form, 3).size(), 3U);
    EXPECT_EQ(message_of([&, form = form] { parse_metadata(three + "x\n", form, 3); }, ""), refused);
  }
}

TEST(Metadata, CsvWithQuotes) {
  EXPECT_EQ(rows_of("m.csv",
                    "id,file_name,prompt\r\n1,a.png,\"a \"\"red\"\" fox, sitting\"\r\n\r\n"
                    "2,b.png,\"two\nlines\"\n3,c.png,\n4,d.png\n5,,x\n6,\"e.png\",plain"),
            (Rows{"2 a.png|a \"red\" fox, sitting", "4 b.png|two\nlines", "6 c.png|",
                  "7 !has 2 fields, the first line has 3", "8 !names no picture", "9 e.png|plain"}));
  EXPECT_EQ(rows_of("m.csv", "image\na.png\n"), (Rows{"2 a.png|(none)"}));
}

TEST(Metadata, WhatSpoilsTheFileIsAnError) {
  EXPECT_EQ(refusal("m.csv", "name,caption\na,b\n"),
            "metadata m.csv: no column for the pictures: the first line must name one of image, file_name, image_path, "
            "path; it has \"name\", \"caption\"");
  EXPECT_EQ(refusal("m.csv", "image,caption\na,\"b\nc\n"), "metadata m.csv: line 2: a quote is never closed");
  EXPECT_EQ(refusal("m.jsonl", "{}\n{\"image\": \"\xFF\"}"), "metadata m.jsonl: is not UTF-8 in line 2");
  for (const char* name : {"image", "caption"})
    EXPECT_EQ(refusal("m.csv", "caption,image," + std::string(name) + "\na,b,c\n"),
              "metadata m.csv: the first line names the column \"" + std::string(name) + "\" twice");
  EXPECT_EQ(rows_of("m.csv", "image,id,id,caption\na.png,1,2,x\n"), (Rows{"2 a.png|x"})) << "what is not read may be";
  EXPECT_EQ(refusal("m.json", "{}"), "metadata m.json: only .jsonl and .csv files are read");
}

}  // namespace
}  // namespace trainer::data
