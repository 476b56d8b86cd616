/// @file LoRAs for a FLUX.2 of two double and two single blocks, and the folder that their files stand in.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <adapter/lora_file.hpp>
#include <filesystem>
#include <flux2/lora_family.hpp>
#include <flux2/names.hpp>
#include <string>
#include <support/parity.hpp>
#include <vector>

namespace trainer::adapter {

struct LoraShape {
  int64_t rank = 4;
  double alpha = 4;
  at::ScalarType dtype = at::kFloat;
};

/// Random pairs for every linear layer of the model whose name contains `part`.
std::vector<LoraLayer> random_layers(const LoraShape& shape, const std::string& part = "");

/// scale * up * down in fp64.
at::Tensor delta(const LoraLayer& layer);

class LoraFiles : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  /// Writes `layers` in a format and returns the file.
  std::filesystem::path write(const std::string& format, std::vector<LoraLayer> layers, const std::string& name = "a");
  /// The file in another format.
  std::filesystem::path convert(const std::filesystem::path& file, const std::string& format, const std::string& name);
  /// A file of these tensors.
  std::filesystem::path raw(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata = {});
  /// What read_lora throws, "CODE: message"; "accepted" when nothing.
  std::string refusal(const std::filesystem::path& file);

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("trainer-lora-" + std::to_string(::getpid()));
  const LoraFamily family_ = flux2::lora_family();
};

}  // namespace trainer::adapter
