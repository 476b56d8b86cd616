// LibTorch is compiled with it, and the layout of what its profiler's headers hold depends on it.
#ifndef NDEBUG
#define NDEBUG
#endif
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <base/files.hpp>
#include <run/profiler.hpp>
#include <run/step_table.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <utility>

namespace trainer::run {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

std::set<ActivityType> activities(bool cuda) {
  std::set<ActivityType> all{ActivityType::CPU};
  if (cuda) all.insert(ActivityType::CUDA);
  return all;
}

/// nullopt: neither an operator's nor a device's work. CUPTI's own calls (cudaLaunchKernel, ...) carry numbers that are
/// no operator's, and the shadow of a mark on the device's side of the trace is no work.
std::optional<SpanKind> kind_of(const kineto::KinetoEvent& event) {
  using Activity = libkineto::ActivityType;
  if (event.isHiddenEvent()) return std::nullopt;
  const auto activity = static_cast<Activity>(event.activityType());
  if (activity == Activity::GPU_MEMCPY) return SpanKind::copy;
  if (activity == Activity::CONCURRENT_KERNEL || activity == Activity::GPU_MEMSET) return SpanKind::kernel;
  if (activity != Activity::CPU_OP && activity != Activity::USER_ANNOTATION) return std::nullopt;
  const auto scope = static_cast<at::RecordScope>(event.scope());
  if (scope == at::RecordScope::USER_SCOPE) return SpanKind::mark;
  return scope == at::RecordScope::BACKWARD_FUNCTION ? SpanKind::node : SpanKind::op;
}

std::vector<Span> spans_of(const kineto::ProfilerResult& result) {
  std::vector<Span> spans;
  for (const kineto::KinetoEvent& event : result.events()) {
    const std::optional<SpanKind> kind = kind_of(event);
    if (!kind) continue;
    const bool works = kind == SpanKind::kernel || kind == SpanKind::copy;
    spans.push_back({event.name(), *kind, static_cast<int64_t>(event.startNs()), static_cast<int64_t>(event.endNs()),
                     event.startThreadId(), works ? event.linkedCorrelationId() : event.correlationId()});
  }
  return spans;
}

}  // namespace

Profiler::Profiler(int64_t steps, std::filesystem::path folder, const std::vector<c10::Device>& devices,
                   std::function<void()> before_write)
    : asked_(steps),
      folder_(std::move(folder)),
      before_write_(std::move(before_write)),
      cuda_(std::any_of(devices.begin(), devices.end(), [](const c10::Device& device) { return device.is_cuda(); })) {}

Profiler::~Profiler() {
  if (running_) kineto::disableProfiler();
}

void Profiler::start() {
  // Kineto looks for a GPU even where none is asked for, and calls it an error that there is none.
  setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  const ProfilerConfig config(ProfilerState::KINETO);
  kineto::prepareProfiler(config, activities(cuda_));
  kineto::enableProfiler(config, activities(cuda_),
                         {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
  running_ = true;
}

std::string Profiler::stop() {
  running_ = false;
  asked_ = 0;
  const auto result = kineto::disableProfiler();
  if (before_write_) before_write_();
  make_folders(folder_);
  const std::filesystem::path trace = folder_ / "trace.json";
  result->save(trace.string());
  if (!std::filesystem::exists(trace))
    throw Error(ExitCode::io, trace.string() + ": the profiler could not write its trace");
  const std::string table = describe(step_table(spans_of(*result)));
  write_file_atomically(folder_ / "table.txt", table + "\n");
  return table + "\n" + trace.string() + " shows it in time: open it in https://ui.perfetto.dev or chrome://tracing";
}

std::string Profiler::after_step() {
  if (asked_ == 0) return {};
  ++seen_;
  if (seen_ == 1) start();
  return seen_ == asked_ + 1 ? stop() : std::string();
}

std::string Profiler::end() {
  if (asked_ == 0) return {};
  if (seen_ < 2)
    return "--profile: nothing was profiled; it begins after the first step of a run, and there were no more";
  return stop();
}

}  // namespace trainer::run
