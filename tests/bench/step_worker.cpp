/// @file One side of tools/bench: our LoRA training step, driven over stdin so that the two sides' steps
/// alternate.
///   step_worker SETTINGS        JSON: the keys of step_setup.hpp, threads, and counter (byte_counter.so, or "")
/// Prints "ready PARAMETERS". Each input line runs one step and is answered by a line:
///   time    WALL_SECONDS CPU_SECONDS LOSS PEAK_RSS_BYTES
///   bytes   PEAK_BYTES LIVE_BYTES: of tensors, the most within the step and what is there between steps; on a GPU its
///           allocator's numbers
///   ops     CALLS FLOPS RECOMPUTED_CALLS RECOMPUTED_FLOPS: heavy operators called in the step, their operations as
///           plans count them, and what the engine says about its recompute (-1: nothing)
///   matmul  FLOPS_A_SECOND of the device, in square bf16 matrix products; runs no step
///   operators NUMBER of them, then a line for each: NAME CALLS SECONDS, of its own without those that it calls,
///           most first; "(outside)" is the rest of the step
///   profile FOLDER    NUMBER of lines, then the table of `trainer run --profile`, of two steps; leaves its files there
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <matmul/matmul.hpp>
#include <metrics/meter.hpp>
#include <nlohmann/json.hpp>
#include <run/profiler.hpp>
#include <trainer/sdk/recompute.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <set>

#include "step_setup.hpp"
#include "worker.hpp"

namespace {

using trainer::bench::Setup;

/// Waits until the device has done all that it was given.
void finish(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

void time_step(Setup& setup) {
  double loss = 0;
  const trainer::bench::Seconds seconds = trainer::bench::timed([&] {
    loss = setup.trainer().step().loss;
    finish(setup.device());
  });
  std::printf("%.6f %.6f %.8f %lld\n", seconds.wall, seconds.cpu, loss,
              static_cast<long long>(trainer::metrics::memory_use().peak));
}

/// The best of a few, so that clocks are up.
void measure_matmul(Setup& setup) {
  const int64_t size = setup.device().is_cpu() ? 512 : 8192;
  const auto square = [&] { return at::randn({size, size}, at::dtype(at::kBFloat16).device(setup.device())); };
  const at::Tensor a = square(), b = square();
  double best = 1e30;
  for (int i = 0; i < 10; ++i) {
    finish(setup.device());
    best = std::min(best, trainer::bench::timed([&] {
                            at::mm(a, b);
                            finish(setup.device());
                          }).wall);
  }
  std::printf("%.6g\n", 2 * std::pow(static_cast<double>(size), 3) / best);
}

void count_device_bytes(Setup& setup) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  auto* const allocator = c10::getDeviceAllocator(setup.device().type());
  allocator->resetPeakStats(setup.device().index());
  setup.trainer().step();
  finish(setup.device());
  const auto bytes = allocator->getDeviceStats(setup.device().index()).allocated_bytes.at(kAll);
  std::printf("%lld %lld\n", static_cast<long long>(bytes.peak), static_cast<long long>(bytes.current));
}

void count_bytes(Setup& setup, void* counter) {
  if (!setup.device().is_cpu()) return count_device_bytes(setup);
  TORCH_CHECK(counter != nullptr, "bytes are asked for, but no counter was given");
  const auto live = reinterpret_cast<int64_t (*)()>(dlsym(counter, "bench_live_bytes"));
  const auto take_peak = reinterpret_cast<int64_t (*)()>(dlsym(counter, "bench_take_peak_bytes"));
  take_peak();
  setup.trainer().step();
  std::printf("%lld %lld\n", static_cast<long long>(take_peak()), static_cast<long long>(live()));
}

int64_t heavy_calls = 0;

std::unique_ptr<at::ObserverContext> count_call(const at::RecordFunction& call) {
  const std::string_view name = call.name();
  static const std::set<std::string_view> kProducts{"aten::mm",      "aten::bmm",     "aten::addmm",
                                                    "aten::baddbmm", "aten::_int_mm", "aten::_scaled_mm"};
  if (kProducts.contains(name) || name.starts_with("aten::_scaled_dot_product_") ||
      name.starts_with("trainer::low_rank_"))
    ++heavy_calls;
  return nullptr;
}

/// The operations are those that plans count, backwards of attentions with them.
void count_operators(Setup& setup) {
  heavy_calls = 0;
  const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(count_call).scopes({at::RecordScope::FUNCTION}));
  const trainer::FlopCounter counter;
  setup.trainer().step();
  at::removeCallback(handle);
  const auto [calls, flops] = setup.recomputed();
  std::printf("%lld %.0f %lld %.0f\n", static_cast<long long>(heavy_calls), counter.flops(),
              static_cast<long long>(calls), flops);
}

/// A table of where the time of a step goes; the trace lies in `folder`.
void profile_steps(Setup& setup, int64_t steps, const std::string& folder) {
  trainer::run::Profiler profiler(steps, folder, {setup.device()});
  std::string text;
  while (text.empty()) {
    setup.trainer().step();
    finish(setup.device());
    text = profiler.after_step();
  }
  std::printf("%lld\n%s\n", static_cast<long long>(std::count(text.begin(), text.end(), '\n') + 1), text.c_str());
}

/// Time of operators, each without the operators that it calls.
class Profile {
 public:
  struct Entry {
    int64_t calls = 0;
    double seconds = 0;
  };
  static std::map<std::string, Entry> of(const std::function<void()>& work) {
    entries_.clear();
    open_ = nullptr;
    const auto handle =
        at::addGlobalCallback(at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION}));
    const double start = now();
    work();
    const double whole = now() - start;
    at::removeCallback(handle);
    double inside = 0;
    for (const auto& [name, entry] : entries_) inside += entry.seconds;
    entries_["(outside)"] = {1, whole - inside};
    return entries_;
  }

 private:
  /// Of the processor, which a busy machine disturbs least.
  static double now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  struct Open final : at::ObserverContext {
    double start = now();
    double inner = 0;
    Open* outer = nullptr;
  };
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction&) {
    auto call = std::make_unique<Open>();
    call->outer = open_;
    open_ = call.get();
    return call;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    const auto& call = static_cast<const Open&>(*context);
    const double seconds = now() - call.start;
    Entry& entry = entries_[function.name()];
    ++entry.calls;
    entry.seconds += seconds - call.inner;
    if (call.outer != nullptr) call.outer->inner += seconds;
    open_ = call.outer;
  }
  static inline std::map<std::string, Entry> entries_;
  static inline Open* open_ = nullptr;
};

void time_operators(Setup& setup) {
  const auto entries = Profile::of([&] { setup.trainer().step(); });
  std::vector<std::pair<std::string, Profile::Entry>> sorted(entries.begin(), entries.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  std::printf("%zu\n", sorted.size());
  for (const auto& [name, entry] : sorted)
    std::printf("%s %lld %.6f\n", name.c_str(), static_cast<long long>(entry.calls), entry.seconds);
}

void run(const nlohmann::json& settings) {
  if (const int threads = settings.at("threads"); threads > 0) at::set_num_threads(threads);
  using namespace trainer::matmul;
  use(settings.value("matmul", "auto") == "mkl" ? Library::mkl : suited());
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  void* counter = nullptr;
  if (const std::string library = settings.at("counter"); !library.empty()) {
    counter = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(counter != nullptr, dlerror());
  }
  Setup setup(settings);
  std::printf("ready %lld\n", static_cast<long long>(setup.parameters()));
  trainer::bench::serve([&](const std::string& question) {
    if (question == "bytes")
      count_bytes(setup, counter);
    else if (question == "ops")
      count_operators(setup);
    else if (question == "matmul")
      measure_matmul(setup);
    else if (question == "operators")
      time_operators(setup);
    else if (question.starts_with("profile "))
      profile_steps(setup, 2, question.substr(std::strlen("profile ")));
    else
      time_step(setup);
  });
}

}  // namespace

int main(int argc, char** argv) { return trainer::bench::worker_main(argc, argv, run); }
