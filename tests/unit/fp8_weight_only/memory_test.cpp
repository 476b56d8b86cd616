/// @file Loading is streaming: 200 MB of bf16 weights become a packed model with one tensor at a time beside it.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>
#include <trainer/sdk/memory.hpp>

#include <assembly/model_builder.hpp>
#include <fstream>
#include <support/parity.hpp>
#include <weights/model_files.hpp>
#include <weights/write.hpp>

#include "flux2_model.hpp"
#include "numbers.hpp"

namespace trainer::fp8 {
namespace {

constexpr int64_t kLayers = 8, kLayerOut = 2560, kLayerIn = 5120;
constexpr int64_t kTensorBytes = kLayerOut * kLayerIn * 2,
                  kPackedBytes = kLayers * (kLayerOut * kLayerIn + kLayerOut * 4);
constexpr int64_t kSlack = 6 << 20;  // the quantiser's rows and small tensors

std::string layer(int64_t i) { return "blocks." + std::to_string(i) + ".up"; }

/// Makes each weight when it is read, and watches that the one before is gone by then.
class OneAtATime final : public WeightSource {
 public:
  OneAtATime() {
    for (int64_t i = 0; i < kLayers; ++i)
      infos_[layer(i) + ".weight"] = {layer(i) + ".weight", at::kBFloat16, {kLayerOut, kLayerIn}};
  }
  [[nodiscard]] std::vector<std::string> names() const override {
    std::vector<std::string> list;
    for (const auto& [name, info] : infos_) list.push_back(name);
    return list;
  }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override {
    const auto it = infos_.find(name);
    return it == infos_.end() ? nullptr : &it->second;
  }
  [[nodiscard]] at::Tensor read(std::string_view name) override {
    ++reads[std::string(name)];
    EXPECT_TRUE(last_.expired()) << "two weights of the file in memory at " << name;
    at::Tensor tensor = at::empty({kLayerOut, kLayerIn}, at::kBFloat16);
    tensor.fill_(static_cast<double>(reads.size()));
    last_ = tensor.getIntrusivePtr();
    return tensor;
  }
  [[nodiscard]] std::string describe() const override { return "generated"; }
  [[nodiscard]] std::string identity() const override { return "generated"; }
  std::map<std::string, int> reads;

 private:
  std::map<std::string, TensorInfo, std::less<>> infos_;
  c10::weak_intrusive_ptr<c10::TensorImpl> last_{at::Tensor().getIntrusivePtr()};
};

/// Builds all layers through the plugin and returns them.
assembly::Inventory build(WeightSource& source, MemoryStrategy& strategy) {
  assembly::BuildOptions options;
  options.dtype = at::kBFloat16;
  options.format = strategy.weight_format();
  assembly::SourceBuilder builder(source, options);
  for (int64_t i = 0; i < kLayers; ++i) builder.linear(layer(i), kLayerIn, kLayerOut, false);
  return builder.inventory();
}

TEST(Streaming, PeakIsThePackedModelAndOneTensor) {
  const auto fp8 = testing::make_strategy("fp8_weight_only");
  OneAtATime source;
  testing::CountedBytes bytes;
  const assembly::Inventory inventory = build(source, *fp8);
  EXPECT_EQ(inventory.weight_bytes, kPackedBytes);
  EXPECT_EQ(bytes.live(), kPackedBytes);
  EXPECT_LE(bytes.peak(), kPackedBytes + kTensorBytes + kSlack);
  std::printf("    peak of tensors %lld MB\n", static_cast<long long>(bytes.peak() >> 20));
  ASSERT_EQ(source.reads.size(), static_cast<std::size_t>(kLayers));
  for (const auto& [name, count] : source.reads) EXPECT_EQ(count, 1) << name << " was read again";
}

#ifndef __SANITIZE_ADDRESS__  // which keeps freed memory back
int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  ADD_FAILURE() << "no " << key;
  return 0;
}

/// The same as the system sees it, from a file of 210 MB.
TEST(Streaming, ResidentMemoryFromAFile) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / ("fp8_streaming_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  {
    at::Tensor one = at::empty({kLayerOut, kLayerIn}, at::kBFloat16);
    one.fill_(0.5);
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (int64_t i = 0; i < kLayers; ++i) tensors.emplace_back(layer(i) + ".weight", one);
    weights::write_safetensors(folder / "model.safetensors", tensors);
  }
  const auto fp8 = testing::make_strategy("fp8_weight_only");
  const auto files = weights::ModelFiles::open(folder);
  malloc_trim(0);                                 // what earlier tests freed must not hide what this one takes
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts anew
  const int64_t before = status_bytes("VmRSS");
  EXPECT_LT(status_bytes("VmHWM"), before + (8 << 20)) << "the peak could not be reset: this test would show nothing";
  const assembly::Inventory inventory = build(*files, *fp8);
  EXPECT_EQ(inventory.weight_bytes, kPackedBytes);
  const int64_t peak = status_bytes("VmHWM") - before;
  std::printf("    peak %lld MB over the start, packed %lld MB, largest tensor %lld MB, file %lld MB\n",
              static_cast<long long>(peak >> 20), static_cast<long long>(kPackedBytes >> 20),
              static_cast<long long>(kTensorBytes >> 20), static_cast<long long>(kLayers * kTensorBytes >> 20));
  EXPECT_GE(peak, kPackedBytes);
  // Code that is loaded on first use and gaps in the heap count here; a second tensor would be beyond.
  constexpr int64_t kSystemSlack = 16 << 20;
  static_assert(kSystemSlack < kTensorBytes);
  EXPECT_LE(peak, kPackedBytes + kTensorBytes + kSystemSlack);
  std::filesystem::remove_all(folder);
}
#endif

}  // namespace
}  // namespace trainer::fp8
