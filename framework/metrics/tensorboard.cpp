#include <metrics/tensorboard.hpp>

#include <base/files.hpp>

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>

namespace trainer::metrics {
namespace {

static_assert(std::endian::native == std::endian::little, "records hold little-endian numbers");

template <typename Number>
std::string little_endian(Number number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

/// Protocol buffers: a varint, a tag (field number and wire type), and the three kinds of fields used here.
std::string varint(uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>(number | 0x80);
  return bytes + static_cast<char>(number);
}
std::string integer_field(unsigned field, int64_t value) {
  return varint(field << 3 | 0) + varint(static_cast<uint64_t>(value));
}
std::string double_field(unsigned field, double value) { return varint(field << 3 | 1) + little_endian(value); }
std::string float_field(unsigned field, float value) { return varint(field << 3 | 5) + little_endian(value); }
std::string bytes_field(unsigned field, std::string_view value) {
  return varint(field << 3 | 2) + varint(value.size()) + std::string(value);
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::filesystem::path new_file(const std::filesystem::path& folder) {
  make_folders(folder);
  const std::string stem = "events.out.tfevents." + std::to_string(static_cast<int64_t>(wall_time())) + ".trainer." +
                           std::to_string(::getpid()) + ".";
  for (int i = 0;; ++i) {
    std::filesystem::path file = folder / (stem + std::to_string(i));
    if (!std::filesystem::exists(file)) return file;
  }
}

uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U; }

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
    table[i] = crc;
  }
  return table;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = ~0U;
  for (const char byte : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

std::string tf_record(std::string_view data) {
  const std::string length = little_endian(static_cast<uint64_t>(data.size()));
  return length + little_endian(masked(crc32c(length))) + std::string(data) + little_endian(masked(crc32c(data)));
}

// Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log. Summary: 1 value. Summary.Value: 1 tag,
// 2 simple_value. SessionLog: 1 status (START = 1).

TensorBoardFile::TensorBoardFile(const std::filesystem::path& folder, int64_t step)
    : file_(new_file(folder), AppendFile::Mode::create_new) {
  file_.append(tf_record(double_field(1, wall_time()) + bytes_field(3, "brain.Event:2")));
  if (step > 0) {
    file_.append(
        tf_record(double_field(1, wall_time()) + integer_field(2, step + 1) + bytes_field(7, integer_field(1, 1))));
  }
}

void TensorBoardFile::write(int64_t step, std::span<const std::pair<std::string, double>> scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(value)));
  }
  file_.append(tf_record(double_field(1, wall_time()) + integer_field(2, step) + bytes_field(5, summary)));
}

}  // namespace trainer::metrics
