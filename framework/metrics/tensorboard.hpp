/// @file Scalars for TensorBoard: an event file written by hand, since the format is small and the library large.
///
/// Sources: TensorFlow's tsl/lib/io/record_writer.cc (TFRecord: length, masked CRC-32C, data, masked CRC-32C) and
/// tensorflow/core/util/event.proto, summary.proto (field numbers in tensorboard.cpp).
#pragma once

#include <metrics/append_file.hpp>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace trainer::metrics {

class TensorBoardFile {
 public:
  /// A new file events.out.tfevents.* in `folder` (created). `step`: steps done so far; if > 0, readers are told to
  /// forget what earlier files say of later ones. Throws Error (io).
  TensorBoardFile(const std::filesystem::path& folder, int64_t step);
  /// Scalars of one step, e.g. {"loss/train", 0.5}.
  void write(int64_t step, std::span<const std::pair<std::string, double>> scalars);
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

/// CRC-32C (Castagnoli) and the record around `data`; for tests.
uint32_t crc32c(std::string_view bytes);
std::string tf_record(std::string_view data);

}  // namespace trainer::metrics
