#include <metrics/tensorboard.hpp>

#include <gtest/gtest.h>
#include <base/files.hpp>

#include <array>
#include <cmath>
#include <cstring>

namespace trainer::metrics {
namespace {

using namespace std::string_literals;

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    std::array<char, 3> digits;
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    text += digits.data();
  }
  return text;
}

TEST(TensorBoard, Crc32cOfKnownTexts) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);            // RFC 3720's polynomial, the usual check value
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(TensorBoard, RecordsAreFramed) {
  // As TensorFlow's TFRecordWriter writes b"abc".
  EXPECT_EQ(hex(tf_record("abc")),
            "0300000000000000"
            "b099490e"
            "616263"
            "6e57f121");
}

/// Payloads of the records of a file, checksums checked.
std::vector<std::string> records(const std::string& file) {
  std::vector<std::string> payloads;
  for (std::size_t at = 0; at < file.size();) {
    uint64_t length = 0;
    std::memcpy(&length, file.data() + at, 8);
    payloads.push_back(file.substr(at + 12, length));
    EXPECT_EQ(file.substr(at, length + 16), tf_record(payloads.back()));
    at += length + 16;
  }
  return payloads;
}

TEST(TensorBoard, EventsAreProtocolBuffers) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "tensorboard-test";
  std::filesystem::remove_all(folder);
  TensorBoardFile file(folder, 300);
  const std::array<std::pair<std::string, double>, 2> scalars = {{{"loss", 0.5}, {"lr", 0.25}}};
  file.write(301, scalars);
  const auto payloads = records(read_file(file.path(), 1 << 20, "events"));
  ASSERT_EQ(payloads.size(), 3U);
  for (const std::string& payload : payloads) EXPECT_EQ(payload[0], '\x09');  // field 1, 8 bytes: the wall time
  EXPECT_EQ(payloads[0].substr(9),
            "\x1A\x0D"
            "brain.Event:2");
  EXPECT_EQ(hex(payloads[1].substr(9)),
            "10ad02"
            "3a02"
            "0801");  // from step 301, session_log {status: START}
  EXPECT_EQ(payloads[2].substr(9),
            "\x10\xAD\x02\x2A\x18"
            "\x0A\x0B\x0A\x04loss\x15\0\0\0\x3F"
            "\x0A\x09\x0A\x02lr\x15\0\0\x80\x3E"s);
  // A second start gets a file of its own.
  const TensorBoardFile other(folder, 0);
  EXPECT_NE(other.path(), file.path());
  EXPECT_EQ(records(read_file(other.path(), 1 << 20, "events")).size(), 1U);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trainer::metrics
