/// @file `trainer run --profile N`: LibTorch's profiler (Kineto) around N training steps.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trainer::run {

class Profiler {
 public:
  /// Profiles `steps` steps after the first one, which tests what later ones trust and is not like them. 0: none.
  /// `folder` gets trace.json, for chrome://tracing and Perfetto, and table.txt. `before_write` (none: nothing) is
  /// called before that and may throw.
  Profiler(int64_t steps, std::filesystem::path folder, const std::vector<c10::Device>& devices,
           std::function<void()> before_write = {});
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// To be called after every step. Returns what to tell the user, once: after the last profiled step.
  std::string after_step();
  /// No more steps will come; as after_step, for the steps that there were.
  std::string end();

 private:
  void start();
  std::string stop();

  int64_t asked_;  ///< 0 also when it is done
  int64_t seen_ = 0;
  std::filesystem::path folder_;
  std::function<void()> before_write_;
  bool cuda_ = false, running_ = false;
};

}  // namespace trainer::run
