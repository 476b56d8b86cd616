/// @file Running out of the device's memory, and its counters.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <assembly/device.hpp>
#include <base/device_error.hpp>
#include <planner/byte_counter.hpp>
#include <support/device.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::test {
namespace {

using testing::test_device;

at::Tensor bytes(int64_t count) { return at::empty({count}, at::TensorOptions(at::kByte).device(test_device())); }

/// Whether asking for `count` bytes is refused in a way that the program knows as out of memory.
bool refused(int64_t count) {
  try {
    bytes(count);
    return false;
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (const c10::Error& error) {
    return says_out_of_memory(error.what_without_backtrace());
  }
}

TEST(DeviceMemory, MoreThanThereIsIsRefusedAndTheDeviceGoesOn) {
  for (int again = 0; again < 2; ++again) {
    EXPECT_TRUE(refused(int64_t{1} << 50));
    const at::Tensor ones = at::ones({1000}, at::TensorOptions().device(test_device()));
    EXPECT_EQ(ones.sum().item<float>(), 1000);
  }
}

TEST(DeviceMemory, IsCountedToTheByteOfWhatWasAskedFor) {
  planner::install_byte_counter();
  bytes(1);  // opens the device
  const planner::PeakMark mark(test_device());
  constexpr int64_t kCount = 3 << 20;  // a multiple of what allocators round to
  {
    const at::Tensor first = bytes(kCount), second = bytes(kCount);
    EXPECT_EQ(mark.held(), 2 * kCount);
  }
  EXPECT_EQ(mark.held(), 0);
  EXPECT_EQ(mark.above(), 2 * kCount);
}

TEST(Capability, OlderDevicesAreRefusedByName) {
  const at::Device device(at::kCUDA, 1);
  EXPECT_NO_THROW(assembly::require_capability("x", 8.9, device, 8.9));
  EXPECT_NO_THROW(assembly::require_capability("x", 8.9, device, 12.0));
  EXPECT_NO_THROW(assembly::require_capability("x", 8.9, device, std::nullopt)) << "not known";
  try {
    assembly::require_capability("recipe.toml:7:3: memory.strategies: \"fp8_w8a8\"", 8.9, device, 8.6);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::unavailable);
    EXPECT_STREQ(
        error.what(),
        "recipe.toml:7:3: memory.strategies: \"fp8_w8a8\" needs CUDA devices of compute capability 8.9 or newer, "
        "and cuda:1 has 8.6; leave it out, take another strategy, or another device");
  }
}

TEST(Capability, IsKnownOfCudaDevices) {
  EXPECT_EQ(assembly::capability_of(test_device()).has_value(), test_device().is_cuda());
  EXPECT_GE(assembly::capability_of(test_device()).value_or(9), 7);
}

}  // namespace
}  // namespace trainer::test
